"""A reward model's folder: what it says of itself, and whether it can be used here.

<folder>/reward_model.json    last: what it was made from and with, what it is worth, how to use it
<folder>/weights/…            Hugging Face layout; missing where a head alone was trained: `base` has them
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rewards.preferences.render import RENDERING
from stages.tables.filesystem import filesystem, is_local
from stages.weights.checkpoints import weights_hash
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import CadreError, UsageError

FILE: Final = "reward_model.json"
FORMAT: Final = 1
WEIGHTS: Final = "weights"


@dataclass(frozen=True, slots=True)
class RewardModel:
    """What the `reward_model.json` of a folder says."""

    folder: str  # its URL
    info: Mapping[str, Any]

    @property
    def head(self) -> tuple[list[float], float]:
        """Weights and bias of the value head, in float32."""
        return self.info["head"]["weight"][0], self.info["head"]["bias"][0]

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and deviation of raw scores over the plays that the model learned from."""
        return self.info["scale"]["mean"], self.info["scale"]["deviation"]

    @property
    def context(self) -> int:
        """Most tokens of a play's text, and one more."""
        return int(self.info["context"])

    @property
    def hash(self) -> str:
        """Of all that a score depends on."""
        return str(self.info["hash"])

    def weights(self, *, whole: bool = True) -> str:
        """The local folder of its network and tokenizer.

        Args:
            whole: also read the weights, and compare them with those that the model learned with.

        Raises:
            UsageError: the folder is gone, or holds other weights or another tokenizer.
        """
        base = self.info["base"]
        folder = resolve_checkpoint(base if base is not None else f"{self.folder}/{WEIGHTS}")
        self._require("tokenizer", folder, tokenizer_hash(folder))
        if whole:
            self._require("weights", folder, weights_hash(folder))
        return folder

    def _require(self, what: str, folder: str, found: str) -> None:
        expected = self.info[f"{what}_hash"]
        if found != expected:
            raise UsageError(
                f"reward model {self.folder} learned with {what} of hash {expected[:12]}, and {folder} has "
                f"{found[:12]}; put back the files that it was trained with, or train it anew"
            )


def read_model(folder: str) -> RewardModel:
    """The reward model in a folder.

    Raises:
        UsageError: there is none, it is not finished, or another version of Cadre wrote it.
    """
    folder = folder.rstrip("/")
    try:
        fs, path = filesystem(folder)
        folder = str(Path(path).absolute()) if is_local(fs) else folder
        info = json.loads(fs.cat_file(f"{path}/{FILE}"))
        form, rendering = info["format"], info["rendering"]
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} is not a reward model: it has no {FILE}, which is written when training is finished"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, CadreError) as error:
        raise UsageError(f"reward model {folder} can't be read: {type(error).__name__}: {error}") from None
    if (form, rendering) != (FORMAT, RENDERING):
        raise UsageError(
            f"reward model {folder} has format {form} and reads plays as rendering {rendering}; this version "
            f"has {FORMAT} and {RENDERING}. Train it anew"
        )
    return RewardModel(folder, info)


def tokenizer_hash(folder: str) -> str:
    """Of the file that turns text into ids."""
    import hashlib

    return hashlib.blake2b((Path(folder) / "tokenizer.json").read_bytes(), digest_size=16).hexdigest()
