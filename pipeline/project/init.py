"""Writes a new project, and refuses to write over anything."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Final

from pipeline.settings.program import hint, interpreter
from workflows.errors import UsageError

# Names that Cadre's own packages have, or that tests and settings beside the package have.
TAKEN: Final = frozenset({"pipeline", "stages", "rewards", "workflows", "tests", "data", "runs"})
_FILES: Final = {
    "README.md": "README.md",
    "pipeline.toml": "pipeline.toml",
    "scripted.toml": "scripted.toml",
    "train.jsonl": "data/train.jsonl",
    "dev.jsonl": "data/dev.jsonl",
    "package.py.txt": "PACKAGE/__init__.py",
    "team.py.txt": "PACKAGE/team.py",
    "atlas.py.txt": "PACKAGE/atlas.py",
    "reward.py.txt": "PACKAGE/reward.py",
    "script.py.txt": "PACKAGE/script.py",
    "test_team.py.txt": "tests/test_team.py",
    "gitignore.txt": ".gitignore",
}


def next_steps(folder: str) -> list[str]:
    """The commands to type after a project has been written into `folder`, a line each with their purpose."""
    commands = {
        f"{interpreter()} -m pytest": "its own test",
        hint("run iteration --config scripted.toml"): "all stages in seconds, without a model",
        hint("run iteration"): "the iteration again, with a small real model",
    }
    width = max(map(len, commands))
    return [f"cd {folder}", *(f"{command:<{width}}   # {why}" for command, why in commands.items())]


def new_project(folder: str, package: str | None = None) -> tuple[str, list[Path]]:
    """Write the files of a new project into `folder`, which is made.

    Args:
        package: the name of its package; None: from the folder's name.

    Returns:
        The package's name, and the files.

    Raises:
        UsageError: the folder is not empty, or the name can't be used.
    """
    path = Path(folder).expanduser()
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path} is not empty; choose a new folder; nothing is written over what is there")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; choose a new folder")
    name = _package_name(path.resolve().name, package)
    written = []
    for source, place in _FILES.items():
        file = path / place.replace("PACKAGE", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = resources.files("pipeline.project").joinpath("files", source).read_text("utf-8")
        file.write_text(text.replace("PACKAGE", name), "utf-8")
        written.append(file)
    return name, written


def _package_name(folder: str, package: str | None) -> str:
    """A name that no other package has, as Ray's workers look into the working folder first.

    Raises:
        UsageError: it can't name a package, or the name is taken.
    """
    name = package or re.sub(r"\W+", "_", folder.lower()).strip("_")
    why = None
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        why = "can't be the name of a Python package"
    elif name in TAKEN or name in sys.stdlib_module_names or _is_installed(name):
        why = "would hide another package of that name, or be hidden by it"
    if why:
        raise UsageError(f"package name {name!r} {why}; choose one with --package, for example acme_team")
    return name


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder without __init__.py has no origin
