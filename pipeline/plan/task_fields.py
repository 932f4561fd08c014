"""Whether tasks have what the workflow reads of them: a typo or a wrong format is found before a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow.compute as pc

from workflows.data.tasks import LoadedTasks
from workflows.errors import UsageError, WorkflowError, did_you_mean
from workflows.prompts import lookup
from workflows.script import AnyWorkflow
from workflows.task_reads import task_reads

MAX_TASKS_LOOKED_AT: Final = 2_000  # of a split, evenly spaced: decoding a million tasks takes a minute


def check_task_fields(workflow: AnyWorkflow, tasks: LoadedTasks, split: str) -> LoadedTasks:
    """The tasks, with a note for each field that the workflow reads and some of them lack.

    Raises:
        UsageError: no task of the split has a field that the workflow reads; with the closest name.
    """
    reads = task_reads(workflow)
    inputs = _inputs(tasks, split) if reads else []
    if not inputs:
        return tasks
    notes = dict(tasks.notes)
    for read in reads:
        lacking = sum(not _has(task, read.path) for task in inputs)
        path = ".".join(("task", *read.path))
        if lacking == len(inputs):
            raise UsageError(_message(path, read.path, read.reader, inputs, tasks, split))
        if lacking:
            looked_at = f" of {len(inputs)} looked at" if len(inputs) == MAX_TASKS_LOOKED_AT else ""
            notes[f"tasks{looked_at} of split {split!r} without {path}, which {read.reader} reads"] = lacking
    return replace(tasks, notes=notes)


def _inputs(tasks: LoadedTasks, split: str) -> list[dict[str, Any]]:
    column = tasks.tasks.filter(pc.equal(tasks.tasks.column("split"), split)).column("inputs")
    step = max(1, -(-len(column) // MAX_TASKS_LOOKED_AT))
    return [json.loads(column[place].as_py()) for place in range(0, len(column), step)]


def _has(task: Mapping[str, Any], path: Sequence[str]) -> bool:
    try:
        lookup(task, path)
    except WorkflowError:
        return False
    return True


def _message(
    path: str,
    parts: tuple[str, ...],
    reader: str,
    inputs: Sequence[Mapping[str, Any]],
    tasks: LoadedTasks,
    split: str,
) -> str:
    names = list(dict.fromkeys(name for task in inputs for name in task))
    hint = did_you_mean(parts[0], names) if parts[0] not in names else ""
    return (
        f"{reader} reads {path}, which no task of split {split!r} has{hint}; the tasks have: "
        f"{', '.join(names)}. They were read as {' and '.join(tasks.formats)}: change the workflow, or say "
        "with [data] format or columns how the rows are read"
    )
