"""The tracker of a run, opened as the settings ask for it."""

from __future__ import annotations

from pipeline.plan.assemble import Plan
from pipeline.store.run import Run
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.tracking.tracker import NoTracker, Tracker


def open_tracker(plan: Plan, run: Run) -> Tracker:
    """The tracker that the settings ask for, started for this run without waiting for it.

    Raises:
        UsageError: `tracking.uri` is no address that MLflow writes to.
    """
    settings = plan.resolved
    if settings.tracking.uri == "none":
        return NoTracker()
    uri = tracking_uri(settings.tracking.uri, settings.run.root)

    def keep(run_id: str, link: str | None) -> None:
        run.write_info(tracker={"run_id": run_id, "link": link})

    tracker = MlflowTracker(uri, settings.tracking.experiment, artifact_folder(uri), begun=keep)
    tags = run_tags(plan.models.regime, settings.workflow_section.use) | {"run_folder": run.folder.url}
    tags |= settings.tracking.tags
    known = run.info.get("tracker", {}).get("run_id")
    key = f"{run.folder.url} {run.info['created_at']}"
    tracker.start(run.name, known, settings.dump, tags, key, wait=False)
    return tracker
