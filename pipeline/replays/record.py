"""A replay in MLflow: a run of its own, whose tags name the run that it replays."""

from __future__ import annotations

import functools
import json

from pipeline.metrics.answers import answer_metrics
from pipeline.metrics.iteration import iteration_metrics
from pipeline.replays.movement import Movement
from pipeline.replays.replayer import Replayed
from pipeline.settings.names import slug
from pipeline.store.differences import dump
from pipeline.store.evaluated import score_metrics
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, run_tags, tracking_uri
from pipeline.tracking.tracker import Contents, EvaluationRecord, IterationRecord
from pipeline.views.files import all_updates, csv_of
from pipeline.views.render import brief
from stages.tables.parquet import TableRef


def record_replay(result: Replayed) -> str | None:
    """Log a replay where the run's [tracking] says: each iteration at its number; how to open its page.

    None where `tracking.uri` is "none", MLflow does not answer, or nothing was replayed. What is logged
    once is not logged again.
    """
    plan, run = result.plan, result.plan.source.run
    tracking = plan.resolved.tracking
    if tracking.uri == "none" or not result.done:
        return None
    uri, folder = uri_of(run, tracking.uri), plan.folder.url
    tags = tags_of(run, plan.resolved.workflow_section.use) | {
        "kind": "replay with updates" if plan.training else "replay",
        "replay": plan.label,
        "run_folder": folder,
        **{f"set/{key}": brief(now) for key, _, now in plan.changes},
    }
    begun = json.loads(plan.folder.read_text("replay.json") or "{}").get("created_at")
    tracker = tracker_of(uri, tracking.experiment)
    try:
        parameters = plan.resolved.dump
        tracker.start(f"{run.name} replay {plan.label}", None, parameters, tags, f"{folder} {begun}")
        for index, done in result.done.items():
            at = done.finished_at
            if plan.source.split is None:
                metrics = replay_metrics(done, result.own_tables(index), result.moved.get(index))
                contents = functools.partial(_contents, result, index)
                tracker.log_iteration(IterationRecord(index, metrics, at, contents=contents))
            else:
                metrics = score_metrics(plan.source.split, result.scores[index]["scores"])
                tracker.log_evaluation(EvaluationRecord(plan.source.split, index, metrics, at))
        return tracker.link()
    finally:
        tracker.close()


def _contents(result: Replayed, index: int) -> Contents:
    """The files that go with the metrics of one replayed iteration."""
    plan, moved = result.plan, result.moved.get(index)
    files = {
        "settings.toml": plan.resolved.toml.encode(),
        "result.json": dump(moved.as_dict() if moved else {}).encode(),
    }
    if plan.training:
        files["updates.csv"] = csv_of(all_updates(result.own_tables(index))).encode()
    return Contents(files)


def replay_metrics(done: Finished, written: dict[str, TableRef], moved: Movement | None) -> dict[str, float]:
    """One replayed iteration: updates, rows and times of the stages that ran (their tables are `own`), and by
    role the returns and advantages beside the stored ones; means are over turns. With new rewards, who was
    right in the team too."""
    updates = {name: table for name, table in written.items() if name.startswith("updates/")}
    metrics = iteration_metrics(updates, done.accounts, done.stage_seconds)
    if "rewards" in written:
        metrics |= answer_metrics(written["rewards"])
    for row in moved.rows() if moved else ():
        values = {
            "turns": row["turns_after"],
            "turn_return_mean": row["return_after"],
            "advantage_abs_mean": row["advantage_abs_after"],
            "stored_turn_return_mean": row["return_before"],
            "stored_advantage_abs_mean": row["advantage_abs_before"],
            "same_sign_rate": row["same_sign"],
            "advantage_correlation": row["correlation"],
        }
        role = f"role/{slug(row['role'])}" if row["role"] else "role/none"
        metrics |= {f"{role}/{name}": float(value) for name, value in values.items() if value is not None}
    return metrics


def uri_of(run: Run, uri: str | None) -> str:
    return tracking_uri(uri, run.folder.url.rpartition("/")[0])


def tags_of(run: Run, use: str) -> dict[str, str]:
    """Tags of whatever is made from the stored turns of a run."""
    return run_tags(run.info["regime"], use) | {
        "source_run": run.folder.url,
        "source_run_id": str(run.info.get("tracker", {}).get("run_id")),
    }


def tracker_of(uri: str, experiment: str) -> MlflowTracker:
    return MlflowTracker(uri, experiment, artifact_folder(uri))
