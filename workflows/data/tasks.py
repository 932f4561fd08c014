"""Tasks: read from files into the table that every run starts from, and chosen for an iteration.

Nothing is lost on the way: a row becomes a task or a `Reject` with its file, number, cause and reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from workflows.data.collect import Collector, Repeats
from workflows.data.files import Paths, data_files, named_files, shown, split_name
from workflows.data.formats import EXPECTED, MADE_FORMATS
from workflows.data.rejects import Reject, as_text, check_share, count_by_cause
from workflows.data.rows import Reading
from workflows.errors import DataError, did_you_mean
from workflows.trajectory import TASKS, rows_to_table, seed_for, to_json


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """`tasks` in the order of the files, schema TASKS.

    `rejects` and `notes` are those of the whole files, whatever split or limit was asked for. `notes`
    count what was decided about rows that are used, in words. `formats` are those that were read.
    `folded` counts rows that repeat a task: rows read = tasks of all splits + folded + rejects.
    """

    tasks: pa.Table
    rejects: list[Reject]
    source: str  # the last part of the path, or all the paths
    formats: tuple[str, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    folded: int = 0

    @property
    def fingerprint(self) -> str:
        """A hash of the tasks: their order, ids, splits and contents. The same data, the same hash."""
        digest = blake2b(digest_size=16)
        for column in ("task_id", "split", "row_hash"):
            digest.update(to_json(self.tasks.column(column).to_pylist()).encode())
        return digest.hexdigest()

    @property
    def reject_counts(self) -> dict[str, int]:
        """Rejected rows by cause."""
        return count_by_cause(self.rejects)

    @property
    def remarks(self) -> list[str]:
        """Sentences for a summary: rows that are not used, and what was decided about others."""
        rejected = [f"rows of {self.source} not used: {as_text(self.reject_counts)}"] if self.rejects else []
        return rejected + [f"{count} {what}" for what, count in self.notes.items()]


def load_tasks(
    path: Paths,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    max_bad_share: float = 0.0,
    public_tests: int = 1,
    limit: int | None = None,
    repeats: Repeats = "fold",
    delimiter: str = ",",
    encoding: str = "utf-8",
    packages: Sequence[str] = (),
) -> LoadedTasks:
    """Read tasks.

    Args:
        path: a built-in name (of `workflows.data.SHIPPED`), a .jsonl, .json, .csv, .parquet or
            .arrow file, a pattern, a folder (that `datasets` saved, too), several of them, or the same by
            split: `{"train": …, "test": …}`. Any fsspec URL will do. See `files.data_files`.
        format: a name of `formats.NAMES`, "auto" (told from the fields of each file's first row; a row
            that is plainly of another kind, code among mathematics, is read as that), or
            `package.module:function` of a loader: it gets a path and yields rows of the cadre format.
        columns: for rows of no known format, which column holds what; see `formats.from_columns`.
        split: keep this split only. Settings that name a file's split decide; else the row does; else
            what `datasets` wrote, the file's name (`nq_open_dev.jsonl`) or its folder's; else it is
            train. "validation", "valid", "val" and "eval" are dev.
        max_bad_share: the share of rows that may be rejected, 0 to 1.
        public_tests: how many cases of a code task with one list of tests are public; one at least
            stays private. Data sets that divide their tests themselves are left as they are.
        limit: the first so many tasks of every split, or the last where it is negative.
        repeats: what becomes of a row with the id and the content of an earlier one (without an id:
            with its content): "fold" counts it, "reject" makes it a reject.
        delimiter: between the fields of .csv files.
        encoding: of text files that have no byte-order mark.
        packages: folders of the sandbox's packages; a row whose tests import others is rejected.

    A task's id is the row's own, else a hash of its content: filtering and reordering changes no id.
    A row with the id of an earlier one of its file and another content is rejected. Where an earlier
    file gives the same id to another task, `~` and the beginning of its hash are added.

    Raises:
        DataError: a file can't be read, too many rows are bad, no task is left, or no such split.
        UsageError: the loader that `format` names can't be imported.
    """
    if columns and format != "auto":
        raise DataError(f'[data] has columns and format = "{format}"; drop one of them')
    format = MADE_FORMATS.get(format, format)
    collector = Collector(format, columns, public_tests, repeats, Reading(delimiter, encoding), packages)
    for file in named_files(path) if ":" in format else data_files(path):
        collector.read(file)
    where = shown(path)
    num_good = len(collector.tasks) + collector.folded
    check_share(where, num_good, collector.rejects, max_bad_share, EXPECTED)
    collector.count_shared()
    table = rows_to_table(collector.tasks, TASKS)
    if split is not None:
        table = _only(table, split, where)
    if limit is not None:
        table = _limited(table, limit)
    formats, notes = tuple(collector.formats), dict(collector.notes)
    source = PurePosixPath(path).name if isinstance(path, str) else where
    return LoadedTasks(table, collector.rejects, source, formats, notes, collector.folded)


def _limited(tasks: pa.Table, limit: int) -> pa.Table:
    """The first `limit` tasks of every split, the last where it is negative; the order is kept."""
    places: dict[str, list[int]] = {}
    for place, split in enumerate(tasks.column("split").to_pylist()):
        places.setdefault(split, []).append(place)
    kept = [place for some in places.values() for place in (some[:limit] if limit > 0 else some[limit:])]
    return tasks.take(pa.array(sorted(kept), pa.int64()))


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


def _only(tasks: pa.Table, split: str, where: str) -> pa.Table:
    chosen = tasks.filter(pc.equal(tasks.column("split"), split))
    if chosen.num_rows == 0:
        splits = sorted(set(tasks.column("split").to_pylist()))
        ours = split_name(split)
        hint = f"; it is called {ours!r} here" if ours in splits else did_you_mean(split, splits)
        raise DataError(
            f"{where} has no split {split!r}{hint}; it has {', '.join(map(repr, splits)) or 'no tasks'}"
        )
    return chosen
