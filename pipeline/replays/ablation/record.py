"""An ablation in MLflow: a run for each variant, under a parent that has the comparison."""

from __future__ import annotations

from typing import Any

from pipeline.replays.ablation.ablate import Ablation
from pipeline.replays.ablation.plot import ablation_files
from pipeline.replays.record import tags_of, tracker_of, uri_of
from pipeline.settings.names import slug
from pipeline.store.differences import dump
from pipeline.tracking.tracker import Contents, EvaluationRecord, IterationRecord


def record_ablation(ablation: Ablation) -> str | None:
    """Log the parent and its children where the run's [tracking] says; how to open the parent's page.

    None where `tracking.uri` is "none" or MLflow does not answer, which is warned of once. A second call
    for the same ablation logs nothing twice.
    """
    run = ablation.source.run
    plans = {name: replayed.plan for name, replayed in ablation.replays.items()}
    settings = next(iter(plans.values())).resolved
    if settings.tracking.uri == "none":
        return None
    uri, at = uri_of(run, settings.tracking.uri), ablation.folder.url
    tags = tags_of(run, settings.workflow_section.use) | {
        "kind": "ablation",
        "iterations": ", ".join(map(str, ablation.indices)),
        "run_folder": at,
    }
    label = at.rpartition("/")[2]
    what = {
        "ablation": {"source": run.folder.url, "variants": list(plans), "iterations": list(ablation.indices)}
    }
    parent = tracker_of(uri, settings.tracking.experiment)
    try:
        parent_id = parent.start(f"{run.name} ablation {label}", None, what, tags, at)
        files = {
            "ablation.json": dump(ablation.agreement.as_dict()).encode(),
            **ablation_files(ablation.agreement),
        }
        metrics = parent_metrics(ablation)
        parent.log_evaluation(EvaluationRecord("ablation", 0, metrics, contents=lambda: Contents(files)))
        if parent_id is None:
            return None
        for name, plan in plans.items():
            child = tracker_of(uri, settings.tracking.experiment)
            child_tags = {"mlflow.parentRunId": parent_id, "kind": "ablation variant", "variant": name}
            parameters = plan.resolved.dump
            child.start(f"{label}: {name}", None, parameters, tags | child_tags, f"{at} {name}")
            child.log_iteration(IterationRecord(0, variant_metrics(ablation, name)))
            child.close()
        return parent.link()
    finally:
        parent.close()


def parent_metrics(ablation: Ablation) -> dict[str, float]:
    """Rank correlations by pair of variants."""
    both = {"episode_returns": ablation.agreement.returns, "turn_advantages": ablation.agreement.advantages}
    return {
        f"spearman/{what}/{slug(one)}/{slug(other)}": value
        for what, matrix in both.items()
        for (one, other), value in matrix.items()
        if value is not None
    }


def variant_metrics(ablation: Ablation, name: str) -> dict[str, float]:
    """Means over turns by role, under the names that iterations of a run have where they mean the same."""
    rows: list[dict[str, Any]] = [r for r in ablation.agreement.roles.to_dicts() if r["variant"] == name]
    metrics: dict[str, float] = {"turns": float(sum(row["turns"] for row in rows))}
    for row in rows:
        for key in ("return_mean", "advantage_mean", "advantage_abs_mean"):
            if row[key] is not None:
                name = f"turn_{key}" if key == "return_mean" else key  # a run's `return_mean` is by episode
                metrics[f"role/{slug(str(row['role']))}/{name}"] = row[key]
    if metrics["turns"]:
        total = sum(row["return_mean"] * row["turns"] for row in rows if row["return_mean"] is not None)
        metrics["return/turn_mean"] = total / metrics["turns"]
    return metrics
