"""What to say about a data path that is not there, or is of a kind that nobody reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath

import fsspec

from workflows.data import SHIPPED
from workflows.errors import did_you_mean


def exists(path: str) -> bool:
    """Whether there is a file or folder; true also where that can't be known."""
    try:
        fs, place = fsspec.core.url_to_fs(path)
        fs.info(place)
    except FileNotFoundError:
        return False
    except Exception:  # any error of a file system: reading will tell it better
        return True
    return True


def missing(path: str) -> str:
    """The message about a path that is not there, with the closest name in the folder that would hold it."""
    beside: list[str] = []
    name = PurePosixPath(path).name
    with suppress(Exception):  # a hint only
        fs, place = fsspec.core.url_to_fs(path)
        listed = fs.ls(place.rpartition("/")[0], detail=False)
        beside = [path.removesuffix(name) + PurePosixPath(str(other)).name for other in listed]
    return (
        f"{path!r} does not exist: there is no such file or folder, and it is not a built-in name"
        f"{did_you_mean(path, [*SHIPPED, *beside])}; built in: {', '.join(SHIPPED)}"
    )
