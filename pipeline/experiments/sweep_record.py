"""A sweep's own page in MLflow: the parent of its runs' pages, with the comparison as files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.experiments.comparison import Comparison
from pipeline.experiments.sweep_folder import SweepFolder
from pipeline.settings.names import slug
from pipeline.settings.tracking import TrackingSection
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.tracking.tracker import NoTracker, Tracker

FOLDER = "compare"  # of the page's artifacts


def begin_record(
    sweep: SweepFolder, tracking: TrackingSection, values: Mapping[str, Any], tags: Mapping[str, str]
) -> Tracker:
    """Begin or continue the page of a sweep, and note in `sweep.json` where it is.

    Args:
        sweep: its folder.
        tracking: where to record.
        values: the settings that all runs share, as plain values.
        tags: of the page, beside those that every run has.

    Raises:
        UsageError: `tracking.uri` is not an address that MLflow writes to.
    """
    if tracking.uri == "none":
        return NoTracker()
    where = {"uri": tracking_uri(tracking.uri, values["run"]["root"]), "experiment": tracking.experiment}
    tracker = MlflowTracker(where["uri"], where["experiment"], artifact_folder(where["uri"]))
    run_id = tracker.start(
        sweep.name,
        sweep.data["tracker"].get("run_id"),
        values,
        run_tags("sweep", values["workflow"]["use"]) | dict(tags),
        _key(sweep),
    )
    sweep.write(tracker={**where, "run_id": run_id, "link": tracker.link()})
    return tracker


def reopen_record(sweep: SweepFolder) -> Tracker:
    """The page of a sweep that has one; else a tracker that records nothing."""
    known: dict[str, Any] = sweep.data.get("tracker", {})
    if not known.get("run_id"):
        return NoTracker()
    tracker = MlflowTracker(known["uri"], known["experiment"], artifact_folder(known["uri"]))
    tracker.start(sweep.name, known["run_id"], {}, {}, _key(sweep))
    return tracker


def child_tags(sweep: SweepFolder, point: str, parent: str | None) -> dict[str, str]:
    """Tags that put a run's page under the sweep's, and say which point it is of."""
    tags = {"sweep": sweep.name, "point": point}
    return tags | ({"mlflow.parentRunId": parent} if parent else {})


def point_metrics(comparison: Comparison) -> dict[str, float]:
    """The outcome and the cost of every point, for the sweep's own page."""
    metrics: dict[str, float] = {}
    for variant in comparison.variants:
        prefix = f"point/{slug(variant.label)}"
        if variant.returns is not None:
            metrics[f"{prefix}/return_first"] = variant.returns.first.mean
            metrics[f"{prefix}/return_last"] = variant.returns.last.mean
        for name, change in variant.scores.items():
            metrics[f"{prefix}/{'/'.join(slug(p) for p in name.split('/'))}"] = change.last.mean
        metrics |= {f"{prefix}/{name}": value for name, value in variant.cost.items()}
    return metrics


def _key(sweep: SweepFolder) -> str:
    return f"{sweep.folder.url} {sweep.data['created_at']}"
