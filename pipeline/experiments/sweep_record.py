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
from pipeline.tracking.mlflow_view import KIND, VARIES, all_runs, of_sweep
from pipeline.tracking.tracker import NoTracker, Parameters, Tracker

FOLDER = "compare"  # of the page's artifacts
RUNS = "the runs in MLflow"  # what a link to them is called


def begin_record(
    sweep: SweepFolder,
    tracking: TrackingSection,
    parameters: Parameters,
    workflow: str,
    root: str,
    tags: Mapping[str, str],
) -> Tracker:
    """Begin or continue the page of a sweep, and note in `sweep.json` where it is.

    Args:
        sweep: its folder.
        tracking: where to record.
        parameters: the settings that all runs share, and the values of what the sweep varies.
        workflow: its name.
        root: of the runs.
        tags: of the page, beside those that every run has; the names of what varies among them.

    Raises:
        UsageError: `tracking.uri` is not an address that MLflow writes to.
    """
    if tracking.uri == "none":
        return NoTracker()
    where = {"uri": tracking_uri(tracking.uri, root), "experiment": tracking.experiment}
    tracker = _tracker(sweep, where, tags.get(VARIES, ""))
    run_id = tracker.start(
        sweep.name,
        sweep.data["tracker"].get("run_id"),
        parameters,
        run_tags(parameters.named.get("regime", ""), workflow) | {KIND: "sweep"} | dict(tags),
        _key(sweep),
    )
    sweep.write(tracker={**where, "run_id": run_id, "link": tracker.link(), VARIES: tags.get(VARIES, "")})
    return tracker


def reopen_record(sweep: SweepFolder) -> Tracker:
    """The page of a sweep that has one; else a tracker that records nothing."""
    known: dict[str, Any] = sweep.data.get("tracker", {})
    if not known.get("run_id"):
        return NoTracker()
    tracker = _tracker(sweep, known, known.get(VARIES, ""))
    tracker.start(sweep.name, known["run_id"], {}, {}, _key(sweep))
    return tracker


def sweep_links(sweep: SweepFolder, tracker: Tracker) -> dict[str, str]:
    """Links to MLflow's page of the sweep's training runs, grouped by what the sweep varies, and to the page
    of the sweep itself, by what they are called."""
    links = {RUNS: tracker.runs_link(of_sweep(sweep.name, ()).key), "the sweep in MLflow": tracker.link()}
    return {what: link for what, link in links.items() if link}


def child_tags(
    sweep: SweepFolder, point: str, parent: str | None, values: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Tags that put a run's page under the sweep's, and say which point it is of.

    Args:
        values: of the settings that the sweep varies, by name.
    """
    tags = {"sweep": sweep.name, "point": point}
    if values:
        tags |= {**values, VARIES: ", ".join(values)}
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


def _tracker(sweep: SweepFolder, where: Mapping[str, str], varies: str) -> MlflowTracker:
    names = [name for name in varies.split(", ") if name]
    views = [all_runs(), of_sweep(sweep.name, names)]
    return MlflowTracker(where["uri"], where["experiment"], artifact_folder(where["uri"]), views=views)


def _key(sweep: SweepFolder) -> str:
    return f"{sweep.folder.url} {sweep.data['created_at']}"
