"""How the person at the keyboard started this program, so that a hint is a command that works there."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SCRIPT: Final = "cadre"  # the console script that an installation makes
MODULE: Final = "-m pipeline"
_SETTINGS: Final = ("--config", "-c", "--set")
VARIABLE: Final = (
    "CADRE_PROGRAM"  # set for processes that this one starts: their hints are for the same person
)


def program() -> str:
    """`cadre`, `python -m pipeline`, or either with the path that it was started by.

    The name alone is enough where the shell's PATH leads to this very script or interpreter; otherwise the
    path is given, relative where it lies below the working folder: `.venv/bin/python -m pipeline`.
    """
    if name := os.environ.get(VARIABLE):
        return name
    if started_as_script():
        return _as_typed(sys.argv[0])
    return f"{interpreter()} {MODULE}"


def interpreter() -> str:
    """`python`, or the path of the interpreter where the shell's `python` is another one."""
    return _as_typed(sys.executable or "python")


def hint(command: str) -> str:
    """The command line that runs `command`, for example `hint("show qa")`."""
    return f"{program()} {command}"


def again(option: str, verb: str | None = None) -> str:
    """The command line of this process with `option` added; `run iteration` where it is not a `run`.

    Args:
        option: a name and a value; it takes the place of what the line has of that name.
        verb: of `run`, where another one than this process's has the option: with the same settings then.
    """
    name = option.split()[0]
    words = sys.argv[1:] if _is_ours(sys.argv[0]) and sys.argv[1:2] == ["run"] else ["run", "iteration"]
    if verb is not None and words[1:2] != [verb]:
        words = ["run", verb, *_of_settings(words)]
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if name not in (word, before) and not word.startswith(f"{name}=")
    ]
    return hint(f"{shlex.join(kept)} {option}")


def _of_settings(words: Sequence[str]) -> list[str]:
    """What a command line has of `--config` and `--set`, which every verb of `run` takes."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word in _SETTINGS or before in _SETTINGS or word.partition("=")[0] in ("--config", "--set")
    ]


def _is_ours(program_file: str) -> bool:
    file = Path(program_file)
    return file.name == SCRIPT or file.parts[-2:] == ("pipeline", "__main__.py")


def version() -> str:
    """The version of the installed package, or `not installed` for a bare checkout."""
    from importlib import metadata

    try:
        return metadata.version("cadre-rl")
    except metadata.PackageNotFoundError:
        return "not installed"


def started_as_script() -> bool:
    """Whether the console script runs this process, rather than `python -m pipeline`."""
    return Path(sys.argv[0]).name == SCRIPT


def _as_typed(file: str) -> str:
    """`file` by its name where the PATH finds it, else by its path, quoted for a shell.

    Links are not followed: a virtual environment's `python` links to one that lacks its packages.
    """
    path = Path(os.path.abspath(file))
    on_path = [name for name in dict.fromkeys((_plain_name(path), path.name)) if _leads_to(name, path)]
    if on_path:
        return on_path[0]
    here = Path.cwd()
    if path.parent == here:
        return shlex.quote(f"./{path.name}")
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _plain_name(path: Path) -> str:
    """`python` for `python3.11`; any other name as it is."""
    return "python" if path.name.startswith("python") else path.name


def _leads_to(name: str, path: Path) -> bool:
    """Whether the shell runs `name` from the folder of `path`, where an environment keeps its programs."""
    command = shutil.which(name)
    return command is not None and Path(os.path.abspath(command)).parent == path.parent
