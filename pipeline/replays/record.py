"""An ablation in MLflow: a run for each variant, under a parent that names the run they are of."""

from __future__ import annotations

from typing import Any

from pipeline import store
from pipeline.metrics import slug
from pipeline.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.replays.ablation import Ablation
from pipeline.tracking import MlflowTracker


def record(found: Ablation) -> str | None:
    """Log the parent and its children where the run's [tracking] says; how to open the parent's page.

    None where `tracking.uri` is "none" or MLflow does not answer, which is warned of once. A second call
    for the same ablation logs nothing twice.
    """
    run = found.source.run
    plans = {name: replayed.plan for name, replayed in found.replays.items()}
    settings = next(iter(plans.values())).settings
    if settings.tracking.uri == "none":
        return None
    uri = tracking_uri(settings.tracking.uri, run.folder.url.rpartition("/")[0])
    at = found.folder.url
    tags = run_tags(run.info["regime"], settings.workflow.use) | {
        "kind": "ablation",
        "source_run": run.folder.url,
        "source_run_id": str(run.info.get("tracker", {}).get("run_id")),
        "iterations": ", ".join(map(str, found.indices)),
        "run_folder": at,
    }
    label = at.rpartition("/")[2]
    what = {
        "ablation": {"source": run.folder.url, "variants": list(plans), "iterations": list(found.indices)}
    }
    parent = _tracker(uri, settings.tracking.experiment)
    try:
        parent_id = parent.start(f"{run.name} ablation {label}", None, what, tags, at)
        files = {
            "ablation.json": store.dump(found.agreement.as_dict()).encode(),
            "roles.csv": found.agreement.roles.write_csv().encode(),
        }
        parent.log_evaluation("ablation", 0, parent_metrics(found), lambda: files)
        if parent_id is None:
            return None
        for name, plan in plans.items():
            child = _tracker(uri, settings.tracking.experiment)
            mine = {"mlflow.parentRunId": parent_id, "kind": "ablation variant", "variant": name}
            dump = plan.settings.model_dump(mode="json")
            child.start(f"{label}: {name}", None, dump, tags | mine, f"{at} {name}")
            child.log_iteration(0, variant_metrics(found, name))
            child.close()
        return parent.link()
    finally:
        parent.close()


def parent_metrics(found: Ablation) -> dict[str, float]:
    """Rank correlations by pair of variants."""
    both = {"episode_returns": found.agreement.returns, "turn_advantages": found.agreement.advantages}
    return {
        f"spearman/{what}/{slug(one)}/{slug(other)}": value
        for what, matrix in both.items()
        for (one, other), value in matrix.items()
        if value is not None
    }


def variant_metrics(found: Ablation, name: str) -> dict[str, float]:
    """Means by role, under the names that iterations of a run have."""
    rows: list[dict[str, Any]] = [r for r in found.agreement.roles.to_dicts() if r["variant"] == name]
    metrics: dict[str, float] = {"turns": float(sum(row["turns"] for row in rows))}
    for row in rows:
        for key in ("return_mean", "advantage_mean", "advantage_abs_mean"):
            if row[key] is not None:
                metrics[f"role/{slug(str(row['role']))}/{key}"] = row[key]
    if metrics["turns"]:
        total = sum(row["return_mean"] * row["turns"] for row in rows if row["return_mean"] is not None)
        metrics["return/mean"] = total / metrics["turns"]
    return metrics


def _tracker(uri: str, experiment: str) -> MlflowTracker:
    return MlflowTracker(uri, experiment, artifact_folder(uri))
