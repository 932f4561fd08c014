"""A replacement in MLflow: a page of its own, whose tags name the parent and the new run."""

from __future__ import annotations

from typing import Any

from pipeline.replacement.asked import Asked
from pipeline.replacement.show import rows_of
from pipeline.replacement.state import FILE, State
from pipeline.settings.names import slug
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.tracking.mlflow_view import KIND
from pipeline.tracking.tracker import Contents, IterationRecord

_METRICS = ("score", "gain", "lower", "shock", "lost", "won", "mcnemar_p", "per_message", "effective_share")


def record_replacement(asked: Asked, state: State) -> str | None:
    """Log a replacement that is decided, each step at its place in the table; how to open its page.

    None where `tracking.uri` is "none" or MLflow does not answer. What is logged once is not logged again.
    """
    tracking = asked.old.plan.resolved.tracking
    if tracking.uri == "none" or state.data.get("recorded"):
        return None
    root = asked.run.folder.url.rpartition("/")[0]
    uri = tracking_uri(tracking.uri, root)
    tracker = MlflowTracker(uri, tracking.experiment, artifact_folder(uri))
    tags = run_tags(asked.old.plan.models.regime, asked.old.plan.resolved.workflow_section.use) | {
        KIND: "replacement",
        "replaced": asked.model,
        "newcomer": asked.newcomer,
        "outcome": str(state.outcome),
        "parent_run": asked.parent.folder.url,
        "run_folder": asked.run.folder.url,
    }
    key = f"{state.folder.url} {asked.run.info.get('created_at')}"
    try:
        tracker.start(f"{asked.run.name} replacement", None, asked.old.plan.resolved.dump, tags, key)
        content = (state.folder.read_text(FILE) or "{}").encode()
        logged = True
        for place, row in enumerate(rows_of(asked, state)):
            record = IterationRecord(
                place, step_metrics(asked.model, row), contents=lambda: Contents({FILE: content})
            )
            logged = tracker.log_iteration(record) and logged
        if logged:
            state.write(recorded=True)
        return tracker.link()
    finally:
        tracker.close()


def step_metrics(model: str, row: dict[str, Any]) -> dict[str, float]:
    """The numbers of one step, as metrics `replace/<model>/…`."""
    values = {name: row.get(name) for name in _METRICS}
    return {f"replace/{slug(model)}/{name}": float(v) for name, v in values.items() if v is not None}
