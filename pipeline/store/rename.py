"""Another name for a run: its folder, and what in it says how it is called."""

from __future__ import annotations

import json
import os
import re

from pipeline.settings.program import hint
from pipeline.settings.section import is_name
from pipeline.store.differences import dump
from pipeline.store.folder import Folder
from pipeline.store.lock import RunLock
from pipeline.store.readers import readers_of
from pipeline.store.run import Run
from pipeline.store.runs import is_sweep, sweeps_under
from workflows.errors import UsageError, did_you_mean


def rename_run(root: str, name: str, new: str) -> Run:
    """Give a run another name under the same root; the run by its new name.

    Its replays go with it: they lie in its folder, and what they say of their source is changed.

    Raises:
        UsageError: there is no such run, the name is taken or not one, a process writes to the run, something
            else finds the run by its name (a sweep, another run's settings), or the root is not a local
            folder.
    """
    folder = Folder(root)
    run = Run(root, name)
    if "/" in name or not run.exists:
        if is_sweep(root, name):
            raise UsageError(
                f"{name!r} under {root!r} is a sweep, whose runs are called after it; start another with "
                f"`{hint('run sweep --name NAME')}`"
            )
        raise UsageError(
            f"no run {name!r} under {root!r}{did_you_mean(name, folder.names())}; `{hint('runs')}` lists them"
        )
    if not is_name(new):
        raise UsageError(
            f"{new!r} can't be the name of a run; use letters, digits, '.', '_' and '-', beginning with a "
            "letter or a digit, 128 at most"
        )
    if new in folder.names():
        raise UsageError(f"{folder.child(new).url} is there already; choose another name")
    if not folder.is_local:
        raise UsageError(
            f"{run.folder.url} can't be renamed: an object store has no renaming, only copies; copy it with "
            "the store's own program, or go on under its name"
        )
    if sweep := sweeps_under(root).get(name):
        raise UsageError(
            f"run {name!r} belongs to sweep {sweep!r}, which finds its runs by their names and would make "
            "this one again; if the sweep is done with, remove it first, which leaves its runs "
            f"(`{hint(f'runs --remove {sweep}')}`)"
        )
    if readers := readers_of(folder, name):
        raise UsageError(
            f"run {name!r} can't be renamed: {'; '.join(readers)}; those runs could not go on. Copy the "
            f"weights elsewhere first (`{hint(f'export FOLDER --run {name}')}`), or leave the name"
        )
    with RunLock(run.folder):
        run.read_info()
        run.write_info(name=new)
        text = run.folder.read_text("settings.toml")
        if text is not None:
            run.folder.write_text("settings.toml", _with_name(text, new))
        os.rename(run.folder.path, folder.child(new).path)
    moved = Run(root, new)
    moved.read_info()
    _rename_sources(moved)
    return moved


def _with_name(toml: str, name: str) -> str:
    """The settings that a run keeps, with another `run.name`."""
    return re.sub(r'(?ms)(^\[run\]$(?:(?!^\[).)*?^name = )"[^"]*"', rf'\g<1>"{name}"', toml, count=1)


def _rename_sources(run: Run) -> None:
    """Say in each replay what its source is called now."""
    replays = run.folder.child("replays")
    for file in replays.files("replay.json", but=""):
        info = json.loads(replays.read_text(file) or "{}")
        if "source" in info:
            info["source"] |= {"name": run.name, "uri": run.folder.url}
            replays.write_text(file, dump(info))
