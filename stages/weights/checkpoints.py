"""Model folders: what is in one, whether it is whole, and the hash of its weights.

Looking into a folder reads `config.json`, the tokenizer's files and the safetensors headers only, so that
`check` is done in milliseconds. How a folder is found or built by name is in `stages.weights.resolve`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from workflows.errors import RunFailed, UsageError

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a model folder holds, without loading it. `parameters` counts stored numbers (tied ones once)."""

    architecture: str
    parameters: int
    vocab_size: int
    max_positions: int
    head_size: int
    dtype: str
    tokenizer_hash: str
    bytes: int  # of the weight files


def describe_checkpoint(folder: str) -> CheckpointInfo:
    """Read what a model folder holds and refuse what can't be trained as a chat model here.

    Raises:
        UsageError: a file is missing or broken, or the model is not a causal language model.
    """
    from stages.weights.chat import ChatRenderer  # tokenizers is light, but not free

    path = Path(folder)
    config = read_json(path / "config.json", what="a model folder needs it")
    text_config = {**config, **(config.get("text_config") or {})}
    architecture = (config.get("architectures") or ["none"])[0]
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")) or config.get("is_encoder_decoder"):
        raise UsageError(
            f"checkpoint {folder} holds {architecture}, which is not a causal language model; "
            "expected an architecture such as LlamaForCausalLM in config.json"
        )
    renderer = ChatRenderer(folder)
    if renderer.chat_template is None:
        raise UsageError(
            f"the tokenizer of checkpoint {folder} has no chat template; add chat_template.jinja to the "
            "folder, or use an instruct model"
        )
    numbers = _numbers_by_dtype(path)
    heads = int(text_config.get("num_attention_heads") or 1)
    return CheckpointInfo(
        architecture=architecture,
        parameters=numbers.total(),
        vocab_size=int(text_config["vocab_size"]),
        max_positions=int(text_config.get("max_position_embeddings") or text_config.get("n_positions") or 0),
        head_size=int(
            text_config.get("head_dim")
            or (text_config.get("hidden_size") or text_config.get("n_embd") or 0) // heads
        ),
        dtype=_most_common(numbers),
        tokenizer_hash=renderer.tokenizer_hash,
        bytes=sum(file.stat().st_size for file in weight_files(path)),
    )


def stored_dtype(folder: str) -> str:
    """The dtype of most of a checkpoint's numbers, from the headers of its weight files alone."""
    return _most_common(_numbers_by_dtype(Path(folder)))


def _numbers_by_dtype(path: Path) -> Counter[str]:
    numbers = Counter[str]()
    for _, entry in tensors_of(path):
        numbers[_DTYPES.get(entry["dtype"], entry["dtype"])] += prod(entry["shape"])
    return numbers


def _most_common(numbers: Counter[str]) -> str:
    return numbers.most_common(1)[0][0]


def weights_hash(folder: str) -> str:
    """A hash of the names and bytes of a folder's weight files: equal weights files, equal hash."""
    digest = hashlib.blake2b(digest_size=16)
    for file in weight_files(Path(folder)):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as handle:
            while block := handle.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def require_hash(folder: str, announced: str) -> None:
    """Refuse a folder whose weights are not those that were announced.

    Raises:
        RunFailed: with both hashes.
    """
    if (found := weights_hash(folder)) != announced:
        raise RunFailed(
            f"the weights in {folder} have hash {found}, but {announced} was announced; "
            "the files were changed, or copied halfway"
        )


def shapes_of(folder: str) -> dict[str, list[int]]:
    """The shape of every tensor by name. Reads headers only."""
    return {name: entry["shape"] for name, entry in tensors_of(Path(folder))}


def require_same_tensors(folder: str, shapes: Mapping[str, Sequence[int]], like: str) -> None:
    """Refuse a folder that lacks one of the tensors, or has it in another shape. Reads headers only.

    Args:
        shapes: `shapes_of` the model that is served, taken when it was loaded: a run that goes on starts its
            engines from a checkpoint that it prunes some updates later.
        like: where that model is from, for the message.

    Raises:
        RunFailed: naming the first such tensor.
    """
    have = shapes_of(folder)
    for name, shape in shapes.items():
        found = have.get(name, "no such tensor")
        if found != shape:
            raise RunFailed(
                f"the weights in {folder} are not of the model in {like}: {name} should have shape "
                f"{shape}, found {found}"
            )


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder, by name.

    Raises:
        UsageError: there are none, or one that the index names is missing.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        others = [f.name for f in [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.gguf")]]
        found = f"found {', '.join(sorted(others))}" if others else "found no weights at all"
        raise UsageError(f"checkpoint {path} has no *.safetensors file ({found}); save it as safetensors")
    index = path / "model.safetensors.index.json"
    if index.exists():
        named = set(read_json(index)["weight_map"].values())
        if missing := named - {f.name for f in files}:
            raise UsageError(
                f"checkpoint {path} lacks {sorted(missing)[0]}, which its index names; copy it again"
            )
        files = [f for f in files if f.name in named]
    return files


def read_json(file: Path, what: str = "it is needed") -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"{file.name} is missing in {file.parent}; {what}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{file} can't be read: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{file} holds a {type(value).__name__}; expected a JSON object")
    return value


def tensors_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and header entries (dtype, shape) of all tensors. A safetensors file is eight bytes of
    length, a JSON header, then data."""
    for file in weight_files(path):
        size = file.stat().st_size
        try:
            with file.open("rb") as handle:
                (length,) = struct.unpack("<Q", handle.read(8))
                header = json.loads(handle.read(min(length, size)))
            header.pop("__metadata__", None)
            end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        except (struct.error, ValueError, KeyError, AttributeError):
            raise UsageError(f"{file} is not a safetensors file, or a broken one; copy it again") from None
        if size < end:
            raise UsageError(
                f"{file} is cut off: {size:,} bytes, its header speaks of {end:,}; copy it again"
            )
        yield from header.items()
