"""`run replay`: from the command line to a replay and what is printed of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.lock import RunLock
from pipeline.progress import RichProgress
from pipeline.render import echo, make_console, plain
from pipeline.replays.plan import ReplayPlan, replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import Change, overridden
from pipeline.replays.show import replay_dict, replay_page
from pipeline.replays.source import Source
from pipeline.runs import find_run
from pipeline.settings import ClusterSection
from pipeline.signals import raise_on_stop_signals


def run_replay(
    name: str,
    root: str,
    overrides: Sequence[str],
    *,
    iterations: str | None,
    split: str | None,
    label: str | None,
    until: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Replay a stored run with other settings, and print how its numbers moved.

    Raises:
        UsageError: no such run or iteration, or a setting that stored turns can't follow.
        RunFailed: a stage failed, or with `again`, numbers differ from the stored ones.
    """
    run = find_run(root, name)
    source = Source(run, split)
    plan = replay_plan(source, overridden(run, overrides), label=label, until=until, again=again)
    indices = source.chosen(iterations)
    with held(plan), ray_when_needed(plan.settings.cluster, plan.changes) as start:
        result = replay(plan, indices, RichProgress(), start)
    if as_json:
        sys.stdout.write(json.dumps(plain(replay_dict(result)), indent=1) + "\n")
    else:
        echo(make_console(), replay_page(result))


@contextmanager
def held(plan: ReplayPlan) -> Iterator[None]:
    """One writer per replay. The run itself is not locked: it may be training."""
    begun = plan.folder.names()
    with RunLock(plan.folder):
        yield
    if not begun and set(plan.folder.names()) <= {"lock"}:  # there was nothing to run
        plan.folder.fs.rm(plan.folder.path, recursive=True)


@contextmanager
def ray_when_needed(
    cluster: ClusterSection, changes: Sequence[Change], *, signals: bool = True
) -> Iterator[Callable[[], None]]:
    """A function that starts Ray when it is first called; Ray ends with the block.

    Ray is started here, also for a run that was made on a cluster, unless the replay's own settings
    name one.
    """
    import ray

    from pipeline.cluster import start_ray

    address = cluster.address if any(key == "cluster.address" for key, _, _ in changes) else "local"
    started = False

    def start() -> None:
        nonlocal started
        if started or ray.is_initialized():
            return
        start_ray(address, cluster.object_store_gib)
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
