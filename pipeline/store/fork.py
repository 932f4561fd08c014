"""A run that begins as a copy of another one: its iterations, evaluations, checkpoints and settings.

Files of a run are written whole and never changed (docs/design.md, S5), so on a disk both runs share them by
hard links, which cost no space; either may be removed or go on without the other.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from pipeline.settings.program import hint
from pipeline.settings.reading import parse_settings, read_toml, settings_toml
from pipeline.store.folder import Folder
from pipeline.store.lock import RunLock
from pipeline.store.run import Run
from stages.tables.filesystem import make_parent, reached
from workflows.errors import UsageError

COPIED: Final = ("iterations", "evaluations", "checkpoints")
_OF_THE_PARENT: Final = (
    "tracker",
    "redone",
    "result",
    "replacement",
)  # keys of run.json that are not the fork's


def fork_run(parent: Run, name: str) -> Run:
    """Make run `name` under the parent's root, at the point where the parent is.

    Its next iteration is the one that the parent would make, from the same checkpoints. `run.json` is written
    last, so that half a fork is no run; its `parent` says where it is from.

    Raises:
        UsageError: there is such a run, or an iteration of the parent is unfinished.
    """
    root = parent.folder.url.rpartition("/")[0]
    run = Run(root, name)
    if run.exists:
        raise UsageError(f"{run.folder.url} is there already; choose another name with --name")
    with RunLock(parent.folder):
        info = parent.read_info()
        if unfinished := [i for i in parent.iterations() if not parent.is_finished(i)]:
            raise UsageError(
                f"iteration {unfinished[0]} of run {parent.name!r} is unfinished; finish it first "
                f"(`{hint('run iteration')}` with its settings)"
            )
        for part in COPIED:
            run.folder.remove(part)  # what a fork that was killed has left
            link_tree(parent.folder.child(part), run.folder.child(part))
        run.folder.write_text("settings.toml", named_settings(parent, root, name))
        iterations = len(parent.iterations())
        kept = {key: value for key, value in info.items() if key not in _OF_THE_PARENT}
        now = time.time()
        origin: dict[str, Any] = {"run": parent.name, "uri": parent.folder.url, "iterations": iterations}
        run.write_info(
            **{**kept, "name": name, "created_at": now, "used_at": now, "tracker": {}, "parent": origin}
        )
    return run


def named_settings(run: Run, root: str, name: str) -> str:
    """The settings that a run keeps, of a run of another name."""
    text = run.folder.read_text("settings.toml")
    if text is None:
        raise UsageError(f"{run.folder.url} has no settings.toml, so nothing is known of its team")
    settings = parse_settings(read_toml(text.encode(), f"{run.folder.url}/settings.toml"))
    of_run = settings.run.model_copy(update={"name": name, "root": root})
    return settings_toml(settings.model_copy(update={"run": of_run}))


def link_tree(source: Folder, target: Folder, but: Collection[str] = ()) -> None:
    """Give `target` every file of `source`, at any depth: by a hard link where both are on one disk, else as
    a copy. Files that `target` has are left as they are.

    Args:
        but: names directly inside that are left out.
    """
    try:
        with reached(source.fs, source.url):
            paths = source.fs.find(source.path)
    except FileNotFoundError:
        return
    for path in sorted(paths):
        name = path.removeprefix(source.path).lstrip("/")
        if name.partition("/")[0] in but:
            continue
        to = f"{target.path}/{name}"
        if source.is_local and target.is_local:
            _link(Path(path), Path(to))
        else:
            with reached(target.fs, target.url):
                make_parent(target.fs, to)
                target.fs.cp_file(path, to)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)
