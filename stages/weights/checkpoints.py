"""Model folders: find or build one by name, say what is in it, and hash its weights.

A *checkpoint* in settings is a shipped name, a local folder, an fsspec URL or a hub id; here all of
them become a local folder in Hugging Face layout. Looking into a folder reads `config.json`, the
tokenizer's files and the safetensors headers only, so that `check` is done in milliseconds.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stages.tables.filesystem import filesystem, is_local
from stages.weights.shipped import SHIPPED
from workflows.errors import CadreError, RunFailed, UsageError, did_you_mean

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a model folder holds, without loading it. `parameters` counts stored numbers (tied ones once)."""

    architecture: str
    parameters: int
    vocab_size: int
    max_positions: int
    head_size: int
    dtype: str
    has_chat_template: bool
    tokenizer_hash: str
    bytes: int  # of the weight files


def resolve_checkpoint(name: str, cache_dir: str | None = None) -> str:
    """The local folder of a checkpoint; built, copied or fetched once where it has to be.

    Args:
        name: a shipped name (`smollm2-135m-instruct`, `tiny`), a folder, an fsspec URL or a hub id.
        cache_dir: where built and copied models are kept; default `$XDG_CACHE_HOME/cadre/models`.

    Raises:
        UsageError: there is nothing by that name, or it can't be fetched from here.
    """
    cache = Path(cache_dir) if cache_dir else default_cache_dir()
    if name in SHIPPED:
        version, build = SHIPPED[name]
        return str(_publish(cache / f"{name}-{version()}", build))
    if "://" in name:
        return _resolve_url(name, cache)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if _HUB_ID.fullmatch(name):
        return _fetch_from_hub(name)
    raise UsageError(
        f"checkpoint {name!r} is neither a shipped model ({', '.join(SHIPPED)}) nor a folder that exists"
        f"{did_you_mean(name, SHIPPED)}; give a folder in Hugging Face layout, a URL, or a hub id such as "
        "'owner/model'"
    )


def default_cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cadre" / "models"


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
        has_chat_template=True,
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
        value = json.loads(file.read_text(encoding="utf-8"))
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


# Getting folders -------------------------------------------------------------------------------


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released by the kernel when its holder dies
        yield


def _publish(target: Path, build: Callable[[Path], None]) -> Path:
    """Build a folder once: in a folder beside it that is renamed when whole, one process at a time."""
    if target.is_dir():
        return target
    with _locked(target.with_name(f".{target.name}.lock")):
        if target.is_dir():
            return target
        for left_by_a_kill in target.parent.glob(f".{target.name}.*.building"):
            shutil.rmtree(left_by_a_kill)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".building", dir=target.parent))
        try:
            build(temporary)
            temporary.chmod(0o755)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _resolve_url(url: str, cache: Path) -> str:
    """A copy of a remote folder, keyed by what its filesystem says of the content; `file://` stays put."""
    try:
        fs, path = filesystem(url)
        if not fs.isdir(path):
            raise UsageError(f"checkpoint {url!r} is not a folder that exists")
        if is_local(fs):
            return str(Path(path).resolve())
        state = json.dumps([url, [(f, str(fs.checksum(f))) for f in _files_of(fs, path)]])
    except CadreError:
        raise
    except Exception as error:  # each filesystem has kinds of its own
        raise UsageError(f"checkpoint {url!r} can't be read: {type(error).__name__}: {error}") from None
    key = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
    return str(_publish(cache / f"{Path(path).name}-{key}", lambda folder: _copy(fs, path, folder)))


@contextmanager
def fetched(uri: str) -> Iterator[str]:
    """A local folder with what lies at `uri`: of a remote one a copy, which goes with the block.

    For the weights that a run publishes: there are many, and each is loaded once.
    """
    fs, path = filesystem(uri)
    if is_local(fs):
        yield str(Path(path).absolute())
        return
    with tempfile.TemporaryDirectory(prefix="cadre-weights-") as folder:
        _copy(fs, path, Path(folder))
        yield folder


def _files_of(fs: Any, path: str) -> list[str]:
    return sorted(f for f in fs.find(path) if not f.endswith(".lock"))


def _copy(fs: Any, path: str, folder: Path) -> None:
    for file in _files_of(fs, path):
        local = folder / os.path.relpath(file, path)
        local.parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(file, str(local))


def _fetch_from_hub(name: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        return str(
            snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"])
        )
    except Exception as error:  # the hub client raises a dozen types, offline ones of httpx among them
        raise UsageError(
            f"checkpoint {name!r} is no folder here and can't be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); "
            "check the name and the network, or give a local folder"
        ) from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stages.weights.checkpoints", description=__doc__)
    parser.add_argument("command", choices=["prepare"], help="build, copy or fetch a model once")
    parser.add_argument("name", help="a shipped name, a folder, a URL or a hub id")
    options = parser.parse_args(arguments)
    try:
        folder = resolve_checkpoint(options.name)
        info = describe_checkpoint(folder)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(
        f"{options.name}: {info.architecture}, {info.parameters / 1e6:.1f} M parameters, "
        f"{info.dtype}, {folder}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
