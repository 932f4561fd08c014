"""The local folder of a checkpoint that settings name as a shipped model, a folder, a URL or a hub id.

What is built, copied or fetched is kept in a cache, and made once by one process at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.tables.filesystem import filesystem, is_local
from stages.weights.shipped import SHIPPED
from workflows.errors import CadreError, UsageError, did_you_mean

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


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
            f"checkpoint {name!r} is not a folder here and can't be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); "
            "check the name and the network, or give a local folder"
        ) from None
