"""Work on the parts of tables as tasks of Ray Data: one receipt for each part, errors as themselves.

One small row per task goes through `ray.data`; the task reads and writes the parts itself, so that no table
passes through the driver.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from workflows.errors import CadreError

TASKS_PER_CPU: Final = 8  # enough that unequal parts even out
BRIEF_PARTS: Final = 16  # to a task where a part takes milliseconds: a task costs as much as several of them
REPORT_EVERY_SECONDS: Final = 0.1

Receipt = dict[str, Any]  # what `work` returns for a part: small, and it pickles


def map_parts(
    work: Callable[..., Receipt],
    indices: Sequence[int],
    *,
    num_cpus: float = 0.25,
    retries: int = 3,
    concurrency: int | None = None,
    brief: bool = False,
    on_done: Callable[[Receipt], None] | None = None,
    **arguments: Any,
) -> list[Receipt]:
    """The receipts of `work(index, **arguments)` for every part number, run on Ray Data, in that order.

    An error raised by `work` comes back as itself, with its worker's traceback as a note.

    Args:
        retries: 0 for work with side effects that must not happen twice.
        concurrency: how many parts run at once, each as a task of its own, for parts that take long. None:
            as many as the cluster has CPUs (Ray ends idle processes beyond that within a second, and starting
            them anew costs more than most parts do), several parts to a task.
        brief: a part takes milliseconds, so a CPU gets few tasks, down to one.
        on_done: called with each receipt while the tasks run; a task reports finished parts ten times a
            second.
    """
    import ray

    if not indices:
        return []
    at_once = concurrency or max(1, int(ray.cluster_resources().get("CPU", 1)))
    tasks = len(indices) if concurrency else _num_tasks(len(indices), at_once, brief)
    # Part k goes to task k modulo the number of tasks, so that neighbours, often equally large, are spread.
    shares = [{"parts": list(indices[k::tasks])} for k in range(tasks)]
    with ray.data.DataContext.current(_data_settings()), warnings.catch_warnings():
        # Ray 2.60 warns that this way of passing max_retries goes in 2.64, and has no other yet
        warnings.simplefilter("ignore")
        reports = ray.data.from_items(shares, override_num_blocks=tasks).map_batches(
            _task(work, arguments),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=num_cpus,
            compute=ray.data.TaskPoolStrategy(size=min(at_once, tasks)),
            max_retries=retries,
        )
        # without prefetching, which would hold a row back until the next one has come
        arriving = iter(reports.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
        # closed when a part fails, too: else Ray Data ends the execution when the iterator is collected, and
        # starts another Ray for that where this one has been shut down by then
        with contextlib.closing(arriving):
            pickled = (report for table in arriving for report in table["done"].to_pylist())
            receipts = _gathered(pickled, on_done)
    if lost := set(indices) - receipts.keys():
        raise CadreError(f"Ray Data returned no receipt for parts {sorted(lost)}")
    return [receipts[i] for i in indices]


def _data_settings() -> Any:
    """Ray Data's settings for receipts: each leaves its task at once, and none waits for a budget."""
    import ray

    settings = ray.data.DataContext.get_current().copy()
    settings.target_max_block_size = 1  # a block leaves its task when it is made, not when the task ends
    # Ray Data learns a second after its start how much of the cluster it may use, and has one task at a time
    # until then. Receipts need no budget, and the pool's size says how many tasks run at once.
    settings.op_resource_reservation_enabled = False
    return settings


def _task(
    work: Callable[..., Receipt], arguments: Mapping[str, Any]
) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """What one task runs: its parts one after another, reports as they finish, an end at the first error."""

    def run_share(batch: pa.Table) -> Iterator[pa.Table]:
        done: list[tuple[int, Any]] = []  # finished parts that have not been reported: index, outcome
        reported_at = time.monotonic()
        for index in batch["parts"][0].as_py():
            outcome = _outcome(work, index, arguments)
            done.append((index, outcome))
            failed = isinstance(outcome, Exception)
            if failed or time.monotonic() - reported_at > REPORT_EVERY_SECONDS:
                yield _report(done)
                done, reported_at = [], time.monotonic()
            if failed:
                return
        if done:
            yield _report(done)

    return run_share


def _num_tasks(parts: int, at_once: int, brief: bool) -> int:
    per_cpu = TASKS_PER_CPU
    if brief:
        per_cpu = min(TASKS_PER_CPU, max(1, parts // (BRIEF_PARTS * at_once)))
    return min(parts, per_cpu * at_once)


def _report(done: Sequence[tuple[int, Any]]) -> pa.Table:
    return pa.table({"done": pa.array([pickle.dumps(done)], pa.binary())})


def _gathered(reports: Iterable[bytes], on_done: Callable[[Receipt], None] | None) -> dict[int, Receipt]:
    """The receipts of all parts by index; the first error that a part ended with is raised."""
    receipts: dict[int, Receipt] = {}
    for report in reports:
        for index, outcome in pickle.loads(report):
            if isinstance(outcome, Exception):
                raise outcome
            receipts[index] = outcome
            if on_done:
                on_done(outcome)
    return receipts


def _outcome(work: Callable[..., Receipt], index: int, arguments: Mapping[str, Any]) -> Any:
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
