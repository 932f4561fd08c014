"""One process that writes to one run: the lock, Ray, the fleet and the tracker, all released at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.plan.assemble import Plan
from pipeline.plan.parameters import parameters_of
from pipeline.run.cluster import check_gpus, check_workers_read, start_ray
from pipeline.run.redo import accept_rows
from pipeline.run.runner import Runner
from pipeline.run.signals import raise_on_stop_signals
from pipeline.run.tracker import open_tracker
from pipeline.store.initial_weights import check_and_record, folders_of
from pipeline.store.lock import RunLock
from pipeline.store.run import Run
from pipeline.store.runs import create_or_open
from pipeline.views.output import print_lines
from pipeline.views.progress import RichProgress
from stages.base import Progress
from workflows.draw import drawing


@contextmanager
def session(
    plan: Plan, progress: Progress | None = None, *, signals: bool = True, redo: str | None = None
) -> Iterator[Runner]:
    """A runner on the plan's run folder. Whatever ends it, nothing that it started stays behind.

    Args:
        plan: what the run is.
        progress: where stages report to.
        signals: whether SIGTERM and SIGINT end it.
        redo: a stage of the unfinished iteration that is made again, with those after it.

    Raises:
        UsageError: the run is being written by another process, or is of other settings.
    """
    import ray

    settings = plan.resolved
    if signals:
        raise_on_stop_signals()
    run = Run(settings.run.root, settings.run.name)
    with RunLock(run.folder):
        if redo == "sample":
            accept_rows(run, plan.identity)
        graph = drawing(plan.workflow)
        if remark := create_or_open(run, settings.toml, plan.identity, plan.models.regime, graph):
            print_lines([remark])
        if remark := check_and_record(run, folders_of(plan.trainer_specs, _frozen(plan))):
            print_lines([remark])
        run.write_info(parameters=parameters_of(plan))
        tracker = open_tracker(plan, run)
        runner, failed = None, True
        started_here = not ray.is_initialized()
        try:
            runner = Runner(plan, run, tracker, progress or RichProgress())
            if redo is not None:
                print_lines([runner.redo(redo)])
            if started_here:
                cluster = settings.cluster
                start_ray(cluster.address, cluster.object_store_gib, cluster.ray_start_seconds)
                if signals:
                    raise_on_stop_signals()  # again: starting Ray puts its own handlers in their place
            check_gpus(plan)
            if settings.cluster.address != "local" or not run.folder.is_local:
                check_workers_read(f"{run.folder.url}/run.json")
            yield runner
            runner.fleet.save_checkpoints()
            failed = False
        except BaseException:  # a stop signal too: what was trained since the last checkpoint stays
            if runner:
                runner.fleet.save_at_stop()
            raise
        finally:
            if runner:
                runner.close()
            tracker.close(failed)
            if started_here:
                ray.shutdown()


def _frozen(plan: Plan) -> dict[str, str]:
    """The folders of models with weights here that are not trained, by model id."""
    return {
        model_id: plan.engine_specs[plan.models.models[model_id].base_id].checkpoint
        for model_id in plan.checkpoints
        if model_id not in plan.trainer_specs
    }
