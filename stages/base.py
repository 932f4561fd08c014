"""What a stage is: named tables in, named tables out, and an account of every row.

A stage runs on Ray Data by `map_parts`: one small row per part number goes through
`ray.data`, and the task reads and writes the parts themselves, so that no table passes through
the driver. The work inside is a plain function over `pyarrow.Table` that tests call without Ray.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from stages.tables.parquet import Part, TableRef, TableSink
from workflows.errors import CadreError, UsageError

Lease = Literal["none", "engine", "trainer"]

TASKS_PER_CPU: Final = 8  # enough that unequal parts even out
BRIEF_PARTS: Final = 16  # to a task where a part takes milliseconds: a task costs as much as several of them
TOLD_EVERY_SECONDS: Final = 0.1


@dataclass(slots=True)
class Account:
    """Rows in = rows out + excluded, by reason, at one boundary.

    `unit` says what a row is (task, episode, turn). Raises nothing by itself: the runner calls `check`.
    """

    boundary: str
    unit: str
    rows_in: int
    rows_out: int
    excluded: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        if self.rows_in != self.rows_out + sum(self.excluded.values()):
            raise CadreError(
                f"rows are lost at {self.boundary!r}: {self.rows_in} {self.unit}s in, {self.rows_out} out, "
                f"excluded {self.excluded or 'none'}; this is a fault in the stage, please report it"
            )

    def merge(self, other: Account) -> Account:
        excluded = dict(self.excluded)
        for reason, count in other.excluded.items():
            excluded[reason] = excluded.get(reason, 0) + count
        return Account(
            self.boundary, self.unit, self.rows_in + other.rows_in, self.rows_out + other.rows_out, excluded
        )


@dataclass(slots=True)
class StageResult:
    """What a stage leaves for its manifest: the parts of each output, accounts, and plain numbers."""

    parts: dict[str, list[Part]]
    accounts: list[Account] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences for the summary, e.g. "no signal: ..."


class Progress(Protocol):
    """Where a stage reports how far it is. `unit` rates are shown by the command line."""

    def start(self, label: str, total: int | None, unit: str) -> None: ...
    def advance(self, amount: int = 1, **rates: float) -> None: ...
    def finish(self) -> None: ...


class Quiet:
    """A progress that shows nothing: for tests and library use."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        pass

    def advance(self, amount: int = 1, **rates: float) -> None:
        pass

    def finish(self) -> None:
        pass


@dataclass(slots=True)
class Context:
    """What a stage may use beside its tables. Pure stages use `progress` only."""

    iteration: int
    progress: Progress = field(default_factory=Quiet)
    fleet: Any = None  # pipeline.run.fleet.Fleet, for stages that hold a lease


class Stage(Protocol):
    """One node of an iteration.

    `inputs` and `outputs` map table names to schemas; `folder` is where the manifest lies, within
    the iteration; `places` maps each output to its folder within `folder` ("" for the folder itself).
    A stage may also have `carried`: inputs that are outputs of the iteration before, by name; they have
    no parts in the first iteration.
    """

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def inputs(self) -> Mapping[str, pa.Schema]: ...
    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...
    @property
    def places(self) -> Mapping[str, str]: ...

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult: ...


def check_chain(stages: Sequence[Stage]) -> None:
    """Refuse a list of stages in which an input is not an earlier stage's output of the same schema.

    Raises:
        UsageError: naming the stage, the table and what is there instead.
    """
    known: dict[str, tuple[str, pa.Schema]] = {}
    written = {table: schema for stage in stages for table, schema in stage.outputs.items()}
    for stage in stages:
        carried = carried_of(stage)
        for table, schema in stage.inputs.items():
            if table in carried and written.get(carried[table]) == schema:
                continue
            if table not in known:
                raise UsageError(
                    f"stage {stage.name!r} reads table {table!r}, which no earlier stage writes; "
                    f"written before it: {', '.join(known) or 'nothing'}"
                )
            writer, have = known[table]
            for column in schema.names:
                if column not in have.names or have.field(column).type != schema.field(column).type:
                    raise UsageError(
                        f"stage {stage.name!r} reads {table!r} column {column!r} as "
                        f"{schema.field(column).type}, but {writer!r} does not write it so"
                    )
        for table, schema in stage.outputs.items():
            if table in known:
                raise UsageError(f"table {table!r} is written by {known[table][0]!r} and by {stage.name!r}")
            known[table] = (stage.name, schema)


def carried_of(stage: Stage) -> Mapping[str, str]:
    """Inputs of a stage that are outputs of the iteration before: its input's name → that table."""
    carried: Mapping[str, str] = getattr(stage, "carried", {})
    return carried


def map_parts(
    work: Callable[..., dict[str, Any]],
    indices: Sequence[int],
    *,
    num_cpus: float = 0.25,
    retries: int = 3,
    concurrency: int | None = None,
    brief: bool = False,
    on_done: Callable[[dict[str, Any]], None] | None = None,
    **arguments: Any,
) -> list[dict[str, Any]]:
    """Run `work(index, **arguments)` for every part number on Ray Data; return its receipts by index.

    A receipt is a small dict that pickles: `work` writes its tables itself. An error raised by `work`
    comes back as itself, not as Ray's wrapper, with its worker's traceback as a note. `retries=0` is
    for work with side effects that must not happen twice; `concurrency` bounds how many parts are
    under way at once; by default as many as the cluster has CPUs, for Ray ends idle processes beyond
    that within a second, and starting them anew costs more than most parts do.

    A task takes several parts, one after another, and tells of those that are done ten times a second,
    so `on_done` is called while it runs. `brief` says that a part takes milliseconds: then a CPU has few
    tasks, down to one; otherwise so many that unequal parts even out. With `concurrency`, which is for
    parts that take long, each part has its own.
    """
    import ray

    if not indices:
        return []

    def run_some(batch: pa.Table) -> Iterator[pa.Table]:
        done: list[tuple[int, Any]] = []
        told = time.monotonic()
        for index in batch["parts"][0].as_py():
            done.append((index, _outcome(work, index, arguments)))
            failed = isinstance(done[-1][1], Exception)
            if failed or time.monotonic() - told > TOLD_EVERY_SECONDS:
                yield _row(done)
                done, told = [], time.monotonic()
            if failed:
                return
        if done:
            yield _row(done)

    at_once = concurrency or max(1, int(ray.cluster_resources().get("CPU", 1)))
    tasks = len(indices) if concurrency else _num_tasks(len(indices), at_once, brief)
    settings = ray.data.DataContext.get_current().copy()
    settings.target_max_block_size = 1  # a block leaves its task when it is made, not when the task ends
    # Ray Data learns a second after its start how much of the cluster it may use, and has one task at a time
    # until then. Receipts need no budget, and how many tasks run at once is said below.
    settings.op_resource_reservation_enabled = False
    with ray.data.DataContext.current(settings), warnings.catch_warnings():
        # Ray 2.60 warns that this way of passing max_retries goes in 2.64, and has no other yet
        warnings.simplefilter("ignore")
        shares = [{"parts": list(indices[k::tasks])} for k in range(tasks)]
        done = ray.data.from_items(shares, override_num_blocks=tasks).map_batches(
            run_some,
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=num_cpus,
            compute=ray.data.TaskPoolStrategy(size=min(at_once, tasks)),
            max_retries=retries,
        )
        # without prefetching, which would hold a row back until the next one has come
        told = iter(done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
        # closed when a part fails, too: else Ray Data ends the execution when the iterator is collected, and
        # starts another Ray for that where this one has been shut down by then
        with contextlib.closing(told):
            receipts = _gathered((pickled for rows in told for pickled in rows["done"].to_pylist()), on_done)
    if lost := set(indices) - receipts.keys():
        raise CadreError(f"Ray Data returned no receipt for parts {sorted(lost)}")
    return [receipts[i] for i in indices]


def _num_tasks(parts: int, at_once: int, brief: bool) -> int:
    per_cpu = TASKS_PER_CPU
    if brief:
        per_cpu = min(TASKS_PER_CPU, max(1, parts // (BRIEF_PARTS * at_once)))
    return min(parts, per_cpu * at_once)


def _row(done: Sequence[tuple[int, Any]]) -> pa.Table:
    return pa.table({"done": pa.array([pickle.dumps(done)], pa.binary())})


def _gathered(
    told: Iterable[bytes], on_done: Callable[[dict[str, Any]], None] | None
) -> dict[int, dict[str, Any]]:
    """The receipts of all parts by index; the first error that a part ended with is raised."""
    receipts: dict[int, dict[str, Any]] = {}
    for pickled in told:
        for index, outcome in pickle.loads(pickled):
            if isinstance(outcome, Exception):
                raise outcome
            receipts[index] = outcome
            if on_done:
                on_done(outcome)
    return receipts


def _outcome(work: Callable[..., dict[str, Any]], index: int, arguments: Mapping[str, Any]) -> Any:
    """What `work` returned, or the exception it raised, made fit to travel."""
    try:
        return work(index, **arguments)
    except Exception as error:
        trace = traceback.format_exc()
        if not isinstance(error, CadreError):
            error.add_note(f"in a worker, on part {index}:\n{trace}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception class that does not pickle: its words still do
            return CadreError(f"part {index} failed: {type(error).__name__}: {error}\n{trace}")
        return error
