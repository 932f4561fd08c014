"""A reward model in MLflow: a page of its own, with the loss by step and what it is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.reward_model.asked import Asked
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, tracking_uri
from pipeline.tracking.mlflow_view import KIND
from pipeline.tracking.tracker import Contents, IterationRecord
from stages.reward_model.model import FILE

_OF_A_STEP = ("loss", "likelihood", "accuracy", "margin", "gradient_norm", "learning_rate")
_MARK = "recorded.json"


def record_model(asked: Asked, info: Mapping[str, Any]) -> str | None:
    """Log a finished model, each optimizer step at its place; how to open its page.

    None where `tracking.uri` is "none". What is logged once is not logged again.
    """
    tracking = asked.tracking
    if tracking.uri == "none" or asked.folder.read_text(_MARK) is not None:
        return None
    root = asked.folder.url.rpartition("/")[0]
    uri = tracking_uri(tracking.uri, root)
    tracker = MlflowTracker(uri, tracking.experiment, artifact_folder(uri))
    tags = {KIND: "reward model", "base": asked.base, "run_folder": asked.folder.url}
    tags |= {"parent_runs": ", ".join(info["runs"])}
    name = asked.folder.url.rpartition("/")[2]
    content = Contents({FILE: json.dumps(info, indent=1).encode()})
    try:
        tracker.start(f"{name} reward model", None, asked.section.model_dump(mode="json"), tags, info["hash"])
        logged, steps = True, info["steps"]
        for place, step in enumerate(steps):
            metrics = {f"reward_model/{key}": float(step[key]) for key in _OF_A_STEP}
            last = place == len(steps) - 1
            record = IterationRecord(
                place,
                metrics | (worth(info["judged"]) if last else {}),
                contents=(lambda: content) if last else (lambda: Contents({})),
            )
            logged = tracker.log_iteration(record) and logged
        if logged:
            asked.folder.write_text(_MARK, "{}")
        return tracker.link()
    finally:
        tracker.close()


def worth(judgement: Mapping[str, Any]) -> dict[str, float]:
    """What a model is worth, as metrics `reward_model/held_out/…` and `reward_model/trivial/…`."""
    held_out = judgement["held_out"]
    metrics = {
        f"reward_model/held_out/{key}": float(held_out[key]) for key in ("loss", "margin", "calibration")
    }
    metrics["reward_model/held_out/accuracy"] = float(held_out["accuracy"]["value"])
    for name, ranker in judgement["trivial"].items():
        metrics[f"reward_model/trivial/{name}"] = float(ranker["accuracy"]["value"])
    return metrics
