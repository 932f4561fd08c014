"""The numbers of one iteration, from its tables. Pure: the same tables give the same numbers.

Names do not depend on the sharing regime: `role/<role>/…` always says the same thing, and
`model/<model>/…` stands beside it. The set is bounded: roles, models, rewards, tools, sources, reasons
and stages give names; tasks, episodes and turns never do. What has no data has no metric; it is not 0.
Numbers that are not finite are left out and counted in `not_finite`. `docs/metrics.md` says what each
means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.metrics.names import most_frequent, words
from pipeline.metrics.roles import role_pair_metrics, role_update_metrics
from pipeline.metrics.shift import shift_metrics
from pipeline.metrics.turns import episode_metrics, turn_metrics
from pipeline.settings.names import slug
from stages.base import Account
from stages.tables.parquet import TableRef
from stages.update import MEASURES
from workflows.vocabulary import NOT_THE_POLICYS_DOING

# Columns of the summary row of `updates`, and what they are called.
_UPDATE_METRICS: Final = {
    "loss": "loss",
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
    "kl_old": "kl_old",
    "kl_reference": "kl_reference",
    "clip_fraction": "clip_fraction",
    "dual_clip_fraction": "dual_clip_fraction",
    "entropy": "entropy",
    "explained_variance": "explained_variance",
    "importance_ratio_max": "importance_ratio_max",
    "importance_weight_mean": "importance_weight_mean",
    "importance_weight_max": "importance_weight_max",
    "importance_masked": "importance_masked",
    "sampler_gap_mean": "sampler_gap_mean",
    "sampler_gap_max": "sampler_gap_max",
    "sampler_kl": "sampler_kl",
    "gradient_norm": "gradient_norm",
    "learning_rate": "learning_rate",
    "num_rows": "rows_trained",
    "num_tokens": "tokens_trained",
    "version_after": "version",
}


def iteration_metrics(
    tables: Mapping[str, TableRef], accounts: Sequence[Account], seconds: Mapping[str, float]
) -> dict[str, float]:
    """All metrics of one iteration, by name.

    Args:
        tables: by name: `tasks`, `episodes`, `turns`, `rewards`, `credit`, `partition/<model>`,
            `updates/<model>`, `role_updates/<model>`, `role_pairs/<model>`, `greedy_episodes`; each may be
            missing. The first five have aligned parts.
        accounts: of every boundary.
        seconds: wall time of every stage; `rollout` also gives the rollout's rates.

    Raises:
        CadreError: the parts of `turns`, `rewards` and `credit` do not hold the same turns.
    """
    # in the order in which people look at them: MLflow's table of a run keeps it
    metrics = turn_metrics(tables) if "turns" in tables else {}
    for name, table in tables.items():
        kind, _, model = name.partition("/")
        if kind == "partition":
            metrics[f"model/{slug(model)}/rows_partitioned"] = float(table.rows)
        elif kind == "updates" and model:
            metrics |= _update_metrics(slug(model), table)
        elif kind == "role_updates":
            metrics |= role_update_metrics(model, table)
        elif kind == "role_pairs":
            metrics |= role_pair_metrics(table)
    if "episodes" in tables:
        metrics |= episode_metrics(tables["episodes"], seconds.get("rollout"))
    if "greedy_episodes" in tables:
        metrics |= _greedy_metrics(tables["greedy_episodes"])
    metrics |= shift_metrics(tables)
    metrics |= _account_metrics(accounts) | _time_metrics(seconds)
    return {"not_finite": 0.0} | _finite(metrics)


def measured_by_stages(stages: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Measures that stages took themselves, because their tables give them only at a price, as metrics.

    `stages` has the metrics of each stage's manifest: token advantages, the KL in the reward and an
    adaptive coefficient (`advantage`), running baselines and channels (`credit`), stop decisions (`stops`),
    replays of messages (`counterfactual`, `messages`), and what an update has no column for (`score/<model>`,
    `update/<model>`).
    """
    metrics = {}
    for name, value in stages.get("advantage", {}).items():
        metric, _, model = name.partition("/")
        word = metric if metric == "kl_coefficient" else f"token_{metric}"
        metrics[f"model/{slug(model)}/{word}"] = value
    for name, value in stages.get("credit", {}).items():
        kind, _, role = name.partition("/")
        if kind == "baseline" and role:
            metrics[f"role/{slug(role)}/baseline"] = value
        if kind == "channel":
            channel, _, measure = role.rpartition("/")
            metrics[f"credit/{slug(channel)}/{measure}"] = value
    metrics |= _replay_metrics(stages)
    metrics |= {f"stop/{name}": value for name, value in stages.get("stops", {}).items()}
    if "reward" in (greedy := stages.get("greedy_reward", {})):
        metrics["greedy/reward_mean"] = greedy["reward"]
    for stage, measured in stages.items():
        kind, _, model = stage.partition("/")
        if kind == "score" and "rows_bootstrapped" in measured:
            metrics[f"model/{slug(model)}/rows_bootstrapped"] = measured["rows_bootstrapped"]
        if kind == "update" and model:
            metrics |= {
                f"model/{slug(model)}/{name}": measured[name] for name in MEASURES if name in measured
            }
    return _finite(metrics)


def _replay_metrics(stages: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of replays of messages: what they took, and what they say by op."""
    played = stages.get("counterfactual")
    if played is None:
        return {}
    metrics = {
        "counterfactual/replays": played["played"],
        "counterfactual/failed": played["failed"],
        "counterfactual/unequal": played["unequal"],
        "counterfactual/tokens": played["tokens"],
    }
    if played["stored_tokens"]:
        metrics["counterfactual/overhead"] = played["tokens"] / played["stored_tokens"]
    return metrics | {f"counterfactual/{name}": value for name, value in stages.get("messages", {}).items()}


def _greedy_metrics(episodes: TableRef) -> dict[str, float]:
    """Of the greedy plays that a credit method compares with: no other metric has them."""
    played = episodes.read(["status", "num_response_tokens", "num_prompt_tokens"])
    failed = pc.sum(pc.is_in(played["status"], pa.array([str(s) for s in NOT_THE_POLICYS_DOING]))).as_py()
    return {
        "greedy/episodes": float(played.num_rows),
        "greedy/episodes_failed": float(failed or 0),
        "greedy/response_tokens": float(pc.sum(played["num_response_tokens"]).as_py() or 0),
        "greedy/prompt_tokens": float(pc.sum(played["num_prompt_tokens"]).as_py() or 0),
    }


def with_measured(
    metrics: Mapping[str, float], stages: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """`iteration_metrics` with what `measured_by_stages` gives; the counts of `not_finite` are added."""
    measured = measured_by_stages(stages)
    counts = {name: each.get("not_finite", 0.0) for name, each in (("all", metrics), ("measured", measured))}
    return {**metrics, **measured, "not_finite": counts["all"] + counts["measured"]}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite ones, and in `not_finite` how many were not, if any."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    left_out = len(metrics) - len(finite)
    return finite | ({"not_finite": float(left_out)} if left_out else {})


def _account_metrics(accounts: Iterable[Account]) -> dict[str, float]:
    """Rows that each boundary left out, all and by reason. Boundaries are never added up: a turn that
    has no reward and the same turn that is not trained on for it are not two losses."""
    metrics: dict[str, float] = {}
    for account in accounts:
        boundary = f"rows/{words(account.boundary)}"
        metrics[f"{boundary}/excluded"] = float(account.rows_in - account.rows_out)
        if account.rows_in:
            metrics[f"{boundary}/excluded_rate"] = 1 - account.rows_out / account.rows_in
        for reason, count in most_frequent(account.excluded).items():
            name = f"{boundary}/{words(reason)}"
            metrics[name] = metrics.get(name, 0.0) + count
    return metrics


def _time_metrics(seconds: Mapping[str, float]) -> dict[str, float]:
    if not seconds:
        return {}
    times = {f"time/{'/'.join(slug(p) for p in k.split('/'))}_seconds": v for k, v in seconds.items()}
    return times | {"time/total_seconds": math.fsum(seconds.values())}


def _update_metrics(model: str, table: TableRef) -> dict[str, float]:
    """The summary row of one model's update. A skipped update has its version and `skipped` 1.

    A model that several blocks updated has the numbers of the newest update, and the rows, tokens and
    seconds of all of them.
    """
    summaries = [row for row in table.read().to_pylist() if row["kind"] == "summary"]
    if not summaries:
        return {}
    row = dict(summaries[-1])
    for column in ("num_rows", "num_tokens", "num_forward_tokens", "seconds"):
        row[column] = sum(each[column] or 0 for each in summaries)
    row["skipped"] = row["skipped"] if all(each["skipped"] for each in summaries) else None
    metrics = {f"model/{model}/{m}": row[c] for c, m in _UPDATE_METRICS.items() if row[c] is not None}
    metrics[f"model/{model}/skipped"] = float(row["skipped"] is not None)
    if row["seconds"]:
        metrics[f"model/{model}/update_seconds"] = row["seconds"]
        if row["num_forward_tokens"]:
            metrics[f"model/{model}/update_tokens_per_second"] = row["num_forward_tokens"] / row["seconds"]
    return {name: float(value) for name, value in metrics.items()}
