"""One process that writes to one run: the lock, Ray, the fleet and the tracker, all released at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.plan.assemble import Plan
from pipeline.plan.parameters import parameters_of
from pipeline.run.cluster import check_gpus, check_workers_read, start_ray
from pipeline.run.runner import Runner
from pipeline.run.signals import raise_on_stop_signals
from pipeline.run.tracker import open_tracker
from pipeline.store.lock import RunLock
from pipeline.store.run import Run
from pipeline.store.runs import create_or_open
from pipeline.views.progress import RichProgress
from stages.base import Progress
from workflows.draw import drawing


@contextmanager
def session(plan: Plan, progress: Progress | None = None, *, signals: bool = True) -> Iterator[Runner]:
    """A runner on the plan's run folder. Whatever ends it, nothing that it started stays behind.

    Raises:
        UsageError: the run is being written by another process, or is of other settings.
    """
    import ray

    settings = plan.resolved
    if signals:
        raise_on_stop_signals()
    run = Run(settings.run.root, settings.run.name)
    with RunLock(run.folder):
        create_or_open(run, settings.toml, plan.identity, plan.models.regime, drawing(plan.workflow))
        run.write_info(parameters=parameters_of(plan))
        tracker = open_tracker(plan, run)
        runner, failed = None, True
        started_here = not ray.is_initialized()
        try:
            if started_here:
                cluster = settings.cluster
                start_ray(cluster.address, cluster.object_store_gib, cluster.ray_start_seconds)
                if signals:
                    raise_on_stop_signals()  # again: starting Ray puts its own handlers in their place
            check_gpus(plan)
            if settings.cluster.address != "local" or not run.folder.is_local:
                check_workers_read(f"{run.folder.url}/run.json")
            runner = Runner(plan, run, tracker, progress or RichProgress())
            yield runner
            runner.fleet.save_checkpoints()
            failed = False
        finally:
            if runner:
                runner.close()
            tracker.close(failed)
            if started_here:
                ray.shutdown()
