"""Tasks: read from a file into the table that every run starts from, and chosen for an iteration.

Nothing is lost on the way: a row becomes a task or a `Reject` with its number and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from workflows.data import SHIPPED, shipped_file
from workflows.data.formats import (
    EXPECTED,
    FORMATS,
    Converter,
    Draft,
    Unusable,
    detect,
    from_cadre,
    from_columns,
)
from workflows.data.rows import Broken, read_rows
from workflows.errors import DataError, UsageError, did_you_mean
from workflows.loading import load_object
from workflows.trajectory import TASKS, rows_to_table, seed_for, to_json

DEFAULT_SPLIT: Final = "train"
REJECTS_SHOWN: Final = 5

_SPLIT_NAMES: Final = frozenset({"train", "dev", "test", "validation", "valid", "val", "eval"})


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that became no task. `row` counts from 1: the line of a .jsonl file."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """`tasks` in the order of the file, schema TASKS. `rejects` are those of the whole file."""

    tasks: pa.Table
    rejects: list[Reject]
    source: str


def load_tasks(
    path: str,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    max_bad_share: float = 0.0,
) -> LoadedTasks:
    """Read tasks.

    Args:
        path: a built-in name ("facts"), or any fsspec path of a .jsonl, .json, .csv or .parquet file.
        format: a name of `formats.FORMATS`, "auto" (told from the fields of the first row), or
            `package.module:function` of a loader: it gets `path` and yields rows of the cadre format.
        columns: for rows of no known format, which column holds what; see `formats.from_columns`.
        split: keep this split only. A row says its split itself; else the file's name does
            (`nq_open_dev.jsonl`); else it is train.
        max_bad_share: the share of rows that may be rejected, 0 to 1.

    A task's id is the row's own, else a hash of its content, so it is the same in every run. The second
    row of an id is rejected.

    Raises:
        DataError: the file can't be read, too many rows are bad, no task is left, or no such split.
        UsageError: the loader that `format` names can't be imported.
    """
    if columns and format != "auto":
        raise DataError(f'[data] has columns and format = "{format}"; drop one of them')
    source = path if path in SHIPPED else PurePosixPath(path).name
    name_split = _split_of_name(source)
    tasks: list[dict[str, Any]] = []
    rejects: list[Reject] = []
    row_of: dict[str, int] = {}
    for number, draft in _drafts(path, format, columns):
        if isinstance(draft, Reject):
            rejects.append(draft)
            continue
        task = _task(draft, name_split, source)
        if (first := row_of.setdefault(task["task_id"], number)) != number:
            what = "id" if draft.task_id else "content"
            rejects.append(Reject(number, f"its {what} is that of row {first} (task {task['task_id']!r})"))
            continue
        tasks.append(task)
    _check_share(path, len(tasks), rejects, max_bad_share)
    table = rows_to_table(tasks, TASKS)
    return LoadedTasks(table if split is None else _only(table, split, repr(path)), rejects, source)


def choose(tasks: pa.Table, split: str, seed: int, start: int, count: int) -> pa.Table:
    """Tasks `start` to `start + count` of the endless seeded order of a split.

    The order is one permutation of the split after another, one per epoch, each from `seed`: slices
    that follow each other give every task once per epoch, and what a run sees at `start` does not
    depend on how it got there, on the order of the table, or on the process. Where a slice goes over
    the end of an epoch, the next epoch begins with tasks that the slice does not have yet, so that no
    slice has a task twice. The order therefore depends on `count`, which a run keeps.

    Raises:
        DataError: no such split, or `count` is not from 1 to the number of its tasks.
    """
    pool = _only(tasks, split, "the task set")
    ids = pool.column("task_id").to_pylist()
    if not 1 <= count <= len(ids) or start < 0:
        raise DataError(
            f"an iteration can't take {count} tasks from task {start} of split {split!r}, which has "
            f"{len(ids)}; set [data] tasks_per_iteration from 1 to {len(ids)}"
        )
    size = len(ids)
    epoch, skip = divmod(start, size)
    # The tail of an epoch follows from the one before only where a slice takes more than half of it.
    first = 0 if size < 2 * count else max(0, epoch - 1)
    orders: dict[int, list[str]] = {first - 1: []}
    for current in range(first, epoch + 1 + (skip + count > size)):
        begun = (current * size - start) % count  # tasks of the slice that this epoch completes
        tail = orders[current - 1][size - begun :] if begun else []
        orders[current] = _permutation(ids, seed, current, tail, count - begun)
    wanted = (orders[epoch] + orders.get(epoch + 1, []))[skip : skip + count]
    places = {task_id: place for place, task_id in enumerate(ids)}
    return pool.take(pa.array([places[task_id] for task_id in wanted], pa.int64()))


def _permutation(ids: list[str], seed: int, epoch: int, tail: list[str], head: int) -> list[str]:
    """The order of keyed hashes, but the first `head` are not of `tail`."""
    order = sorted(ids, key=lambda task_id: (seed_for(seed, "epoch", epoch, task_id), task_id))
    if not tail:
        return order
    begun = set(tail)
    first = list(islice((task_id for task_id in order if task_id not in begun), head))
    taken = set(first)
    return first + [task_id for task_id in order if task_id not in taken]


def _drafts(
    path: str, format: str, columns: Mapping[str, str] | None
) -> Iterator[tuple[int, Draft | Reject]]:
    rows, convert = _rows_and_converter(path, format, columns)
    for number, row in rows:
        if isinstance(row, Broken):
            yield number, Reject(number, row.reason)
            continue
        if not isinstance(row, Mapping):
            yield number, Reject(number, f"got {row!r:.60}, expected an object")
            continue
        if convert is None:
            convert = FORMATS[_detected(row, path, number)]
        try:
            draft = convert(row)
            to_json([draft.inputs, draft.gold])
            yield number, draft
        except Unusable as error:
            yield number, Reject(number, str(error))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            # a field of another shape than the data set has, or a value that JSON can't hold
            yield number, Reject(number, f"fields of an unexpected type ({error})")


def _rows_and_converter(
    path: str, format: str, columns: Mapping[str, str] | None
) -> tuple[Iterator[tuple[int, Any]], Converter | None]:
    if ":" in format:
        return _loaded_by(format, path), from_cadre
    if format != "auto" and format not in FORMATS:
        known = ("auto", *FORMATS)
        raise DataError(
            f"[data] format = {format!r} is unknown{did_you_mean(format, known)}; one of {', '.join(known)}, "
            "or package.module:function of a loader"
        )
    convert = from_columns(columns) if columns else FORMATS.get(format)
    return read_rows(shipped_file(path, "tasks")), convert


def _loaded_by(loader: str, path: str) -> Iterator[tuple[int, Any]]:
    function = load_object(loader)
    try:
        yield from enumerate(function(path), 1)
    except UsageError:
        raise
    except Exception as error:
        raise DataError(f"loader {loader!r} failed on {path!r}: {type(error).__name__}: {error}") from error


def _detected(row: Mapping[str, Any], path: str, number: int) -> str:
    if name := detect(row):
        return name
    fields = ", ".join(map(str, row)) or "no fields"
    raise DataError(
        f"tasks {path!r}, row {number}: of no known format; it has {fields}; expected {EXPECTED}; "
        "or say which column is which in [data] columns"
    )


def _task(draft: Draft, name_split: str, source: str) -> dict[str, Any]:
    row_hash = blake2b(to_json([draft.inputs, draft.gold]).encode(), digest_size=16).hexdigest()
    return {
        "task_id": draft.task_id or row_hash,
        "split": draft.split or name_split,
        "source": draft.source or source,
        "inputs": to_json(draft.inputs),
        "gold": to_json(draft.gold),
        "row_hash": row_hash,
    }


def _split_of_name(name: str) -> str:
    said = set(re.split(r"[^a-z]+", name.lower())) & _SPLIT_NAMES
    return said.pop() if len(said) == 1 else DEFAULT_SPLIT


def _check_share(path: str, num_tasks: int, rejects: list[Reject], max_bad_share: float) -> None:
    total = num_tasks + len(rejects)
    if total == 0:
        raise DataError(f"tasks {path!r}: the file has no rows; expected {EXPECTED}")
    shown = "; ".join(f"row {r.row}: {r.reason}" for r in rejects[:REJECTS_SHOWN])
    more = f"; and {len(rejects) - REJECTS_SHOWN} more" if len(rejects) > REJECTS_SHOWN else ""
    if num_tasks == 0 or len(rejects) > max_bad_share * total:
        raise DataError(
            f"tasks {path!r}: {len(rejects)} of {total} rows can't be used, allowed is a share of "
            f"{max_bad_share:g}: {shown}{more}. Repair them, or raise [data] max_bad_share"
        )


def _only(tasks: pa.Table, split: str, where: str) -> pa.Table:
    chosen = tasks.filter(pc.equal(tasks.column("split"), split))
    if chosen.num_rows == 0:
        splits = sorted(set(tasks.column("split").to_pylist()))
        raise DataError(
            f"{where} has no split {split!r}{did_you_mean(split, splits)}; "
            f"it has {', '.join(map(repr, splits)) or 'no tasks'}"
        )
    return chosen
