"""The tracker of a run, opened as the settings ask for it."""

from __future__ import annotations

from typing import Final

from pipeline.plan.assemble import Plan
from pipeline.store.run import Run
from pipeline.store.runs import settings_changes
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.tracking.mlflow_view import KIND, TRAINING, VARIES, View, all_runs, of_sweep
from pipeline.tracking.tracker import NoTracker, Parameters, Tracker

MAX_CHANGES: Final = 4000  # characters; MLflow's tags have 5,000


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

    tracker = MlflowTracker(
        uri,
        settings.tracking.experiment,
        artifact_folder(uri),
        begun=keep,
        views=views_of(settings.tracking.tags),
    )
    tags = run_tags(plan.models.regime, settings.workflow_section.use)
    tags |= {"run_folder": run.folder.url, "run": run.name, KIND: TRAINING}
    tags |= settings.tracking.tags
    tags |= changes_tag(run)
    known = run.info.get("tracker", {}).get("run_id")
    key = f"{run.folder.url} {run.info['created_at']}"
    tracker.start(
        page_name(run.name, tags, settings.run.seed), known, parameters_of(plan), tags, key, wait=False
    )
    return tracker


def changes_tag(run: Run) -> dict[str, str]:
    """The tag that says which settings changed within a run; also that those which had are set back."""
    if "settings_changes" not in run.info:
        return {}
    changes = [f"from iteration {index}: {what}" for index, what in settings_changes(run)]
    return {"settings_changed": "; ".join(changes)[-MAX_CHANGES:] or "no more: set back before an iteration"}


def parameters_of(plan: Plan) -> Parameters:
    """What the record of a run says of its settings: those that were set, and what runs are compared by."""
    settings = plan.resolved
    tags = settings.tracking.tags
    varies = [name for name in tags.get(VARIES, "").split(", ") if name in tags]
    named = {
        "regime": plan.models.regime,
        "workflow": settings.workflow_section.use,
        "model": ", ".join(dict.fromkeys(m.checkpoint for m in plan.models.models.values())),
        "run.seed": str(settings.run.seed),
    }
    return Parameters(
        settings.given,
        named | {name: tags[name] for name in varies},
        settings.dump,
        settings.toml,
    )


def page_name(run: str, tags: dict[str, str], seed: int) -> str:
    """What the page of a run is called: the run's name; in a sweep what differs from its other runs."""
    return f"{tags['point']} · seed {seed}" if "sweep" in tags and tags.get("point") else run


def views_of(tags: dict[str, str]) -> list[View]:
    """The views of the experiment's page in which a run with these tags stands."""
    if "sweep" not in tags:
        return [all_runs()]
    varies = [name for name in tags.get(VARIES, "").split(", ") if name]
    return [all_runs(), of_sweep(tags["sweep"], varies)]
