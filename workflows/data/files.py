"""Which files a data path means: one, several, a pattern, a folder, a Hugging Face `datasets` folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

import fsspec

from workflows.data import SHIPPED, shipped_file
from workflows.data.rows import COLUMNAR_FORMATS, TEXT_FORMATS, format_name
from workflows.errors import DataError

DEFAULT_SPLIT: Final = "train"

Paths = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_SPLITS: Final = {  # the three names that we use, and what others call them
    "train": "train",
    "training": "train",
    "dev": "dev",
    "development": "dev",
    "validation": "dev",
    "valid": "dev",
    "val": "dev",
    "eval": "dev",
    "test": "test",
    "testing": "test",
}
_ABOUT: Final = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
_NOT_A_NAME: Final = re.compile(r"^(?:[\d_-]|of|data|default|part|shard|verl)*$")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file. `split`: what its name or its folder says, else train; `declared`: the settings say it."""

    path: str
    split: str
    source: str  # what its rows come from, in a word
    declared: bool = False


def split_name(name: str) -> str:
    """A split by our name for it: "validation" is "dev". Names that we don't know stay."""
    return _SPLITS.get(name.strip().lower(), name)


def data_files(paths: Paths) -> list[DataFile]:
    """The files behind `[data] path`, in a fixed order.

    Args:
        paths: a built-in name, a file, a pattern with `*`, a folder, several of them, or the same for
            each split by name. Any of them may be an fsspec URL.

    Of a folder that `datasets` saved, the files that it lists count; of another one, all data files in
    it. A split comes from the settings, else from what `datasets` wrote, else from the file's name,
    else from its folder's, else it is train.

    Raises:
        DataError: there is no such file, or a folder without data.
    """
    return [
        replace(file, split=split, declared=True) if split else file
        for split, path in _named(paths)
        for file in _files(path)
    ]


def named_files(paths: Paths) -> list[DataFile]:
    """The same for a user's loader, which knows what its paths mean: they stay as they are."""
    return [
        DataFile(path, split or DEFAULT_SPLIT, _source(path), declared=split is not None)
        for split, path in _named(paths)
    ]


def shown(paths: Paths) -> str:
    """`[data] path` for a message."""
    return (
        repr(paths)
        if isinstance(paths, str)
        else str(dict(paths) if isinstance(paths, Mapping) else [*paths])
    )


def _named(paths: Paths) -> list[tuple[str | None, str]]:
    if isinstance(paths, Mapping):
        return [(split_name(split), path) for split, several in paths.items() for path in _several(several)]
    return [(None, path) for path in _several(paths)]


def _several(paths: str | Sequence[str]) -> Sequence[str]:
    several = [paths] if isinstance(paths, str) else paths
    if not several:
        raise DataError("[data] path is empty; give a built-in name, a file or a folder")
    return several


def _files(path: str) -> Iterator[DataFile]:
    if path in SHIPPED:
        yield DataFile(shipped_file(path, "tasks"), DEFAULT_SPLIT, path)
        return
    if path.startswith(
        ("http://", "https://")
    ):  # asking for a listing would be a request that few servers know
        yield _file(path)
        return
    try:
        fs, place = fsspec.core.url_to_fs(path)
        if fs.isdir(place):
            yield from _folder(fs, path, place)
        elif "*" in path and not fs.exists(place):
            found = sorted(name for name in fs.glob(place) if fs.isfile(name))
            if not found:
                raise DataError(f"no file matches {path!r}; [data] path takes files, folders and patterns")
            fixed = len(place.partition("*")[0].rpartition("/")[0])
            yield from (_file(_url(fs, path, name), name[fixed:]) for name in found)
        else:
            yield _file(path)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"{path!r} can't be read: {error}") from error


def _folder(fs: Any, path: str, place: str) -> Iterator[DataFile]:
    about = f"{place}/dataset_dict.json"
    if fs.exists(about):
        for split in _written(fs, about, "splits"):
            yield from _saved(fs, path, f"{place}/{split}", split)
        return
    if fs.exists(f"{place}/state.json"):
        yield from _saved(fs, path, place, None)
        return
    names = [name for name in sorted(fs.find(place)) if _is_data(name.removeprefix(place))]
    if not names:
        endings = ", ".join((*TEXT_FORMATS, *COLUMNAR_FORMATS))
        raise DataError(f"folder {path!r} has no data files; expected some of {endings}")
    yield from (_file(_url(fs, path, name), name.removeprefix(place)) for name in names)


def _saved(fs: Any, path: str, place: str, split: str | None) -> Iterator[DataFile]:
    """Files of a folder that `Dataset.save_to_disk` wrote: `state.json` names them and the split."""
    state = f"{place}/state.json"
    split = split or _written(fs, state, "_split", required=False) or PurePosixPath(place).name
    if _written(fs, state, "_indices_data_files", required=False):
        raise DataError(f"{path!r} has selected rows as a list of indices; save it with datasets 2 or later")
    folder = PurePosixPath(path).name
    for entry in _written(fs, state, "_data_files"):
        url = _url(fs, path, f"{place}/{entry['filename']}")
        yield DataFile(url, _SPLITS.get(str(split).lower(), DEFAULT_SPLIT), folder)


def _written(fs: Any, name: str, key: str, required: bool = True) -> Any:
    with fs.open(name, "rb") as file:
        content = json.load(file)
    if required and not isinstance(content.get(key), list):
        raise ValueError(f"{name} has no list {key!r}; it is not what `datasets` writes")
    return content.get(key)


def _is_data(name: str) -> bool:
    parts = PurePosixPath(name.lstrip("/")).parts
    hidden = any(part.startswith((".", "_")) for part in parts)
    return (
        not hidden
        and parts[-1] not in _ABOUT
        and format_name(name).endswith((*TEXT_FORMATS, *COLUMNAR_FORMATS))
    )


def _url(fs: Any, path: str, name: str) -> str:
    return str(fs.unstrip_protocol(name)) if "://" in path else name


def _file(path: str, below: str = "") -> DataFile:
    """A file; `below` is its place in the folder that was asked for, whose folders may say a split."""
    stem = PurePosixPath(format_name(path)).stem
    said = {_SPLITS[word] for word in re.split(r"[^a-z]+", stem) if word in _SPLITS}
    folders = {_SPLITS[part] for part in PurePosixPath(below.lower()).parts[:-1] if part in _SPLITS}
    split = next((names.pop() for names in (said, folders) if len(names) == 1), DEFAULT_SPLIT)
    return DataFile(path, split, _source(path))


def _source(path: str) -> str:
    """The file's name without its ending; where that says no more than a split, the folder's."""
    name = PurePosixPath(path).name
    for part in reversed(PurePosixPath(path).parts):
        stem = "" if part.endswith((":", "/")) else part.split(".")[0]  # a protocol or the root
        words = re.sub("|".join(sorted(_SPLITS, key=len, reverse=True)), "", stem.lower())
        if stem and not _NOT_A_NAME.match(words):
            return stem
    return name
