"""`run replay` from the command line to what is printed, and what `run ablate` shares with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich.console import RenderableType

from pipeline.replays.dry import dry_dict, dry_page, due_of
from pipeline.replays.plan import ReplayPlan, replay_plan
from pipeline.replays.record import record_replay
from pipeline.replays.replayer import replay
from pipeline.replays.settings import Change, overridden
from pipeline.replays.show import replay_dict, replay_page
from pipeline.replays.source import Source
from pipeline.run.signals import raise_on_stop_signals
from pipeline.settings.schema import ClusterSection
from pipeline.store.folder import Folder
from pipeline.store.lock import RunLock
from pipeline.store.runs import find_run
from pipeline.views.output import print_json, print_pages
from pipeline.views.progress import RichProgress
from workflows.errors import RunFailed, UsageError

BRIEF_SECONDS: Final = 10.0  # a stage that is done sooner leaves no line: each iteration has one


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of `run replay`, beside the run and its settings."""

    iterations: str | None = None  # A:B
    split: str | None = None
    label: str | None = None
    until: str | None = None
    again: bool = False
    update: bool = False
    dry_run: bool = False
    as_json: bool = False


def run_replay(name: str, root: str, overrides: Sequence[str], options: ReplayOptions) -> None:
    """Replay a stored run with other settings, and print how its numbers moved.

    Raises:
        UsageError: no such run or iteration, a setting that stored turns can't follow, or with `update`,
            weights that are gone or more memory than there is.
        RunFailed: a stage failed, no weights moved though they should, or with `again`, numbers differ from
            the stored ones.
    """
    run = find_run(root, name)
    source = Source(run, options.split)
    indices = source.chosen(options.iterations)
    plan = replay_plan(
        source,
        overridden(run, overrides),
        label=options.label,
        until=options.until,
        again=options.again,
        update=indices if options.update else (),
    )
    if options.dry_run:
        due = due_of(plan, indices)
        print_result(options.as_json, lambda: dry_dict(plan, due), lambda: dry_page(plan, due))
        return
    address = _address(plan.resolved.cluster, plan.changes)
    check = functools.partial(_check_memory, plan, address)
    with held(plan.folder), ray_when_needed(plan.resolved.cluster, plan.changes, check) as start:
        progress = RichProgress(brief_seconds=BRIEF_SECONDS)
        result = replay(plan, indices, progress, start, on_done=progress.print_line)
    result.notes += left_out(source, options.iterations)
    link = record_replay(result)
    print_result(options.as_json, lambda: replay_dict(result, link), lambda: replay_page(result, link))
    if result.trained is False:
        raise RunFailed(
            f"the replay {plan.label!r} has trained on nothing: no iteration had a signal, so no weights "
            "moved; look at the rewards and the credit above, and use others"
        )


def print_result(as_json: bool, values: Callable[[], Any], page: Callable[[], RenderableType]) -> None:
    """Print the values as JSON, or else the page; only the one that is printed is made."""
    if as_json:
        print_json(values())
    else:
        print_pages([page()], None, as_json=False)


def left_out(source: Source, span: str | None) -> list[str]:
    """A note for each iteration of the span that can't be replayed."""
    return [f"iteration {i} is left out: its rollout is unfinished" for i in source.unfinished(span)]


def _check_memory(plan: ReplayPlan, address: str) -> None:
    """Refuse updates for which this machine has not the memory or the GPUs.

    Raises:
        UsageError: how much they need, and what there is.
    """
    if plan.training is None:
        return
    from pipeline.plan.capacity import start_problem

    trainers = plan.training.trainers
    if problem := start_problem(trainers, address):
        raise UsageError(problem)


def _address(cluster: ClusterSection, changes: Sequence[Change]) -> str:
    """Where Ray runs: here, also for a run that was made on a cluster, unless the replay's own settings
    name one."""
    return cluster.address if any(key == "cluster.address" for key, _, _ in changes) else "local"


@contextmanager
def held(folder: Folder) -> Iterator[None]:
    """One writer per replay. The run itself is not locked: it may be training."""
    begun = folder.names()
    try:
        with RunLock(folder):
            yield
    finally:
        # there was nothing to run; on object stores there are no empty folders
        if folder.is_local and not begun and set(folder.names()) <= {"lock"}:
            folder.fs.rm(folder.path, recursive=True)
            above = folder.path.rpartition("/")[0]
            if not folder.fs.ls(above):
                folder.fs.rmdir(above)


@contextmanager
def ray_when_needed(
    cluster: ClusterSection,
    changes: Sequence[Change],
    check: Callable[[], None] = lambda: None,
    *,
    signals: bool = True,
) -> Iterator[Callable[[], None]]:
    """A function that starts Ray when it is first called, after `check`; Ray ends with the block."""
    import ray

    from pipeline.run.cluster import start_ray

    started = False

    def start() -> None:
        nonlocal started
        if started or ray.is_initialized():
            return
        check()
        start_ray(_address(cluster, changes), cluster.object_store_gib, cluster.ray_start_seconds)
        started = True
        if signals:
            raise_on_stop_signals()  # starting Ray puts its own handlers in their place

    if signals:
        raise_on_stop_signals()
    try:
        yield start
    finally:
        if started:
            ray.shutdown()
