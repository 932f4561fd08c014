"""What a low-rank adapter is, and what it does to a base: read from headers, without torch.

An adapter adds `scale · up(down(x))` to linear layers of a frozen base (LoRA, arXiv:2106.09685), with
`scale = alpha / rank`. `up` starts at zero, so version 0 of an adapter is its base; engines then have no
adapter at all. The arithmetic is in `stages.weights.lora`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.weights.checkpoints import read_json, tensors_of
from workflows.errors import UsageError, did_you_mean

ALL_LINEAR = "all-linear"
_TABLES = ("lm_head", "embed_out", "wte", "wpe")  # and whatever has "embed" in its name


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """Size and place of an adapter.

    `targets` are last words of module names, such as `q_proj`, or `all-linear`: every linear layer but
    the output layer. `train_embeddings` adds copies of the embedding and the output layer, trained in full.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = ALL_LINEAR
    train_embeddings: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def wants(self, module: str) -> bool:
        """Whether a linear layer of this name (the output layer left out) is one of the targets."""
        return self.targets == ALL_LINEAR or module.rsplit(".", 1)[-1] in self.targets


def no_such_target(target: str, modules: Iterable[str], where: str) -> UsageError:
    known = sorted({module.rsplit(".", 1)[-1] for module in modules})
    return UsageError(
        f"{where}: the base has no linear layer {target!r}{did_you_mean(target, known)}; it has "
        f'{", ".join(known) or "none"}; or use targets = "{ALL_LINEAR}"'
    )


def adapter_parameters(spec: AdapterSpec, folder: str, where: str) -> int:
    """How many numbers an adapter on the model in `folder` trains, from the headers of its files.

    Raises:
        UsageError: a target is not a layer of the model; `where` says whose setting it is.
    """
    tables, layers = _shapes(folder)
    if spec.targets != ALL_LINEAR:
        words = {name.rsplit(".", 1)[-1] for name in layers}
        for target in spec.targets:
            if target not in words:
                raise no_such_target(target, layers, where)
    low_rank = sum(spec.rank * sum(shape) for name, shape in layers.items() if spec.wants(name))
    full = sum(rows * columns for rows, columns in tables.values()) if spec.train_embeddings else 0
    return low_rank + full


def _shapes(folder: str) -> tuple[Mapping[str, tuple[int, int]], Mapping[str, tuple[int, int]]]:
    """Matrices of embeddings and output layer, and of all other layers, by the name of their module."""
    path = Path(folder)
    config: dict[str, Any] = read_json(path / "config.json")
    vocabulary = (config.get("text_config") or config).get("vocab_size")
    tables, layers = {}, {}
    for name, entry in tensors_of(path):
        module, _, kind = name.rpartition(".")
        if kind != "weight" or len(entry["shape"]) != 2:
            continue
        rows, columns = entry["shape"]
        word = module.rsplit(".", 1)[-1]
        if rows == vocabulary and (word in _TABLES or "embed" in word):
            tables[module] = (rows, columns)
        elif word not in _TABLES and "embed" not in word:
            layers[module] = (rows, columns)
    return tables, layers
