"""The list of runs under a root, as people see it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pipeline.settings.program import hint
from pipeline.views.render import cell, number, open_table


def runs_table(runs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line a run, from dicts as `pipeline.store.runs.list_runs` gives; missing values show as a dash."""
    if not runs:
        return Text(f"no runs yet; `{hint('run iteration')}` starts one")
    with_replays = any(run.get("replays") for run in runs)
    with_sweeps = any(run.get("sweep") for run in runs)
    columns = [
        "run",
        ">iterations",
        "state",
        ">return",
        "last score",
        ">size",
        "workflow",
        "regime",
        "last used",
    ]
    table = open_table(*columns, *(["sweep"] if with_sweeps else []), *(["replays"] if with_replays else []))
    for column in (table.columns[0], table.columns[2]):
        column.no_wrap = True  # a name that is broken in two can't be copied
    for run in runs:
        used, unfinished = run.get("used_at"), run.get("unfinished")
        state = f"{', '.join(map(str, unfinished))} unfinished" if unfinished else "finished"
        table.add_row(
            cell(run.get("name")),
            cell(number(run.get("iterations"))),
            cell(state),
            cell(number(run.get("return"))),
            cell(_score(run.get("score"))),
            cell(_size(run.get("bytes"))),
            *(cell(run.get(key)) for key in ("workflow", "regime")),
            cell(time.strftime("%Y-%m-%d %H:%M", time.localtime(used)) if used else None),
            *([cell(run.get("sweep"))] if with_sweeps else []),
            *([cell(_some(run.get("replays") or ()))] if with_replays else []),
        )
    return table


def _score(score: Mapping[str, Any] | None) -> str | None:
    """The first score of the last evaluation, with its split."""
    return None if score is None else f"{score['split']} {score['name']} {score['mean']:.3f}"


def _size(size: int | None) -> str | None:
    """Bytes in the largest unit of which there is one."""
    if size is None:
        return None
    for unit, letters in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {letters}"
    return f"{size} B"


def _some(names: Sequence[str], most: int = 3) -> str | None:
    """The first of some names, and how many there are more."""
    more = f" and {number(len(names) - most)} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or None
