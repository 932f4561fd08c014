"""Which runs stand on another one: on its weights, or on a file in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.settings.reading import read_toml
from pipeline.store.folder import Folder
from workflows.errors import UsageError


def readers_of(folder: Folder, name: str) -> list[str]:
    """What in the settings of other runs names a file of this run, a clause each.

    Args:
        folder: the root.
        name: of the run.
    """
    inside = folder.child(name).path
    readers = []
    for other in folder.names():
        text = folder.child(other).read_text("settings.toml") if other != name else None
        if text is None:
            continue
        try:
            settings = read_toml(text.encode(), f"{other}/settings.toml")
        except UsageError:
            continue  # nothing goes on with a file that can't be read
        for key, value in _texts(settings):
            if "/" in value and Path(inside) in (path := Path(value).absolute(), *path.parents):
                readers.append(f"{key} of run {other!r} is {value!r}")
    return readers


def _texts(value: Any, key: str = "") -> list[tuple[str, str]]:
    """The texts in nested settings, each with its dotted key."""
    if isinstance(value, str):
        return [(key, value)]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)  # type: ignore[assignment]
    else:
        return []
    return [text for name, each in items for text in _texts(each, f"{key}.{name}" if key else str(name))]
