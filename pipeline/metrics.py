"""The numbers of one iteration, from its tables. Pure: the same tables give the same numbers.

Names do not depend on the sharing regime: `role/<role>/…` always says the same thing, and
`model/<model>/…` stands beside it. The set is bounded: roles, models, rewards, reasons and stages
give names; tasks, episodes and turns never do. What has no data has no metric; it is not 0.
Numbers that are not finite are left out and counted in `not_finite`.

Tables are read part by part, only the columns that are needed, and a part's token ids only to
count them, so a million turns need the memory of one part.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from stages.base import Account
from stages.tables import TableRef, aligned_parts
from workflows.errors import CadreError
from workflows.trajectory import NOT_THE_POLICYS_DOING, STATUSES, TRUNCATED, TURN_KEYS

MAX_NAMES: Final = 32  # roles, models, rewards or reasons that get metrics of their own; the most frequent

_TURN_COLUMNS: Final = (
    *(*TURN_KEYS, "group_id", "round", "event", "role", "model_id", "status"),
    *("format_valid", "num_prompt_tokens", "num_response_tokens", "num_cached_tokens"),
)

# Means over the llm turns of a role or a model. Turns that failed through no doing of the policy
# (infra_error, timeout, cancelled) do not count; a null does not count in its own mean. Returns and
# rewards are averaged within the episode first, so an episode weighs the same whatever its turns.
_TURN_MEANS: Final[dict[str, pl.Expr]] = {
    "advantage_abs_mean": pl.col("advantage").abs(),
    "format_valid_rate": pl.col("format_valid"),
    "response_tokens_mean": pl.col("num_response_tokens"),
    "truncated_rate": pl.col("status") == TRUNCATED,
}
_EPISODE_MEANS: Final[dict[str, pl.Expr]] = {
    "return_mean": pl.col("return"),
    "reward_mean": pl.col("reward"),
}
_DTYPES: Final = {"reward": pl.Float64, "return": pl.Float64, "advantage": pl.Float64, "excluded": pl.String}

_GROUP_MEANS: Final = {"usable_rate": pl.col("usable"), "no_signal_rate": pl.col("no_signal")}
# of the same turns: those whose engine says how much of the prompt it had cached
_CACHE: Final = {
    "cached": pl.col("num_cached_tokens"),
    "of": pl.when(pl.col("num_cached_tokens").is_not_null()).then(pl.col("num_prompt_tokens")),
}

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
        tables: by name: `episodes`, `turns`, `rewards`, `credit`, `partition/<model>`,
            `updates/<model>`; each may be missing. The first four have aligned parts.
        accounts: of every boundary.
        seconds: wall time of every stage; `rollout` also gives the rollout's rates.

    Raises:
        CadreError: the parts of `turns`, `rewards` and `credit` do not hold the same turns.
    """
    metrics = _account_metrics(accounts) | _time_metrics(seconds)
    if "episodes" in tables:
        metrics |= _rollout_metrics(tables["episodes"], seconds.get("rollout"))
    if "turns" in tables:
        metrics |= _turn_metrics(tables)
    for name, table in tables.items():
        kind, _, model = name.partition("/")
        if kind == "partition":
            metrics[f"model/{slug(model)}/rows_partitioned"] = float(table.rows)
        elif kind == "updates" and model:
            metrics |= _update_metrics(slug(model), table)
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return finite | {"not_finite": float(len(metrics) - len(finite))}


def measured_by_stages(stages: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What stages measured that can't be read off their tables cheaply, by the names of metrics.

    `stages` has the metrics of each stage's manifest: token advantages and the KL in the reward
    (`advantage`), running baselines (`credit`).
    """
    metrics = {}
    for name, value in stages.get("advantage", {}).items():
        metric, _, model = name.partition("/")
        metrics[f"model/{slug(model)}/token_{metric}"] = value
    for name, value in stages.get("credit", {}).items():
        kind, _, role = name.partition("/")
        if kind == "baseline" and role:
            metrics[f"role/{slug(role)}/baseline"] = value
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def slug(name: str) -> str:
    """`name` as one component of a metric name: word characters, `.` and `-`.

    A name that had to change also gets six digits of its hash, so two names never share a slug.
    """
    cleaned = re.sub(r"[^\w.\-]+", "_", name).strip("._")[:60]
    if cleaned == name and name:
        return cleaned
    return f"{cleaned}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=3).hexdigest()}"


def by_name(metrics: Mapping[str, float], kind: str) -> dict[str, dict[str, float]]:
    """The metrics `<kind>/<name>/<metric>` as `{name: {metric: value}}`: one entry a role or model."""
    table: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        parts = key.split("/")
        if len(parts) == 3 and parts[0] == kind:
            table.setdefault(parts[1], {})[parts[2]] = value
    return table


def _account_metrics(accounts: Iterable[Account]) -> dict[str, float]:
    """Rows that each boundary left out, all and by reason. Boundaries are never added up: a turn that
    has no reward and the same turn that is not trained on for it are not two losses."""
    metrics: dict[str, float] = {}
    for account in accounts:
        boundary = f"excluded/{_words(account.boundary)}"
        metrics[f"{boundary}/total"] = float(account.rows_in - account.rows_out)
        for reason, count in _most_frequent(account.excluded).items():
            name = f"{boundary}/{_words(reason)}"
            metrics[name] = metrics.get(name, 0.0) + count
    return metrics


def _time_metrics(seconds: Mapping[str, float]) -> dict[str, float]:
    if not seconds:
        return {}
    times = {f"time/{'/'.join(slug(p) for p in k.split('/'))}_seconds": v for k, v in seconds.items()}
    return times | {"time/total_seconds": math.fsum(seconds.values())}


def _words(sentence: str) -> str:
    """A boundary or reason as one component; unlike a slug, two that look alike may share one."""
    return re.sub(r"\W+", "_", sentence).strip("_")[:60] or "unnamed"


def _rollout_metrics(episodes: TableRef, seconds: float | None) -> dict[str, float]:
    """Counts, tokens and rates of the episodes that were played."""
    columns = ("status", "num_turns", "num_prompt_tokens", "num_response_tokens", "seconds")
    parts = []
    for index in range(len(episodes.parts)):
        frame = _frame(episodes.read_part(index, columns))
        sums = [pl.col(c).sum() for c in columns[1:]]
        parts.append(frame.group_by("status").agg(pl.len().alias("episodes"), *sums))
    if not parts or not episodes.rows:
        return {"rollout/episodes": 0.0}
    by_status = pl.concat(parts).group_by("status").sum().sort("status")
    total = by_status.select(pl.all().exclude("status").sum()).row(0, named=True)
    counts = dict(by_status.select("status", "episodes").iter_rows())
    metrics = {f"rollout/status/{status}": float(counts.get(status, 0)) for status in STATUSES}
    metrics |= {f"rollout/status/{slug(s)}": float(n) for s, n in counts.items() if s not in STATUSES}
    metrics["rollout/episodes"] = float(total["episodes"])
    metrics["rollout/turns"] = float(total["num_turns"])
    metrics["rollout/prompt_tokens"] = float(total["num_prompt_tokens"])
    metrics["rollout/response_tokens"] = float(total["num_response_tokens"])
    metrics["rollout/episode_seconds_mean"] = total["seconds"] / total["episodes"]
    if seconds:
        metrics["rollout/tokens_per_second"] = total["num_response_tokens"] / seconds
        metrics["rollout/episodes_per_second"] = total["episodes"] / seconds
    return metrics


class _Means:
    """Running sums for means over parts: `(kind, name, metric)` to a sum and how many values it has.

    `kind` is the first component of the metric's name; an empty `name` is left out of it.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], tuple[float, int]] = {}

    def add(
        self, kind: str, frame: pl.DataFrame, means: Mapping[str, pl.Expr], by: str | None = None
    ) -> None:
        """Add the rows of `frame`: of each value of column `by`, or all of them under no name."""
        grouped = frame.with_columns(pl.lit("").alias("_name")) if by is None else frame.rename({by: "_name"})
        values = {m: expr.cast(pl.Float64) for m, expr in means.items()}
        sums = grouped.group_by("_name", maintain_order=True).agg(
            *(v.sum().alias(f"{m}/sum") for m, v in values.items()),
            *(v.count().alias(f"{m}/count") for m, v in values.items()),
        )
        for row in sums.iter_rows(named=True):
            for metric in means:
                key = (kind, row["_name"] or "", metric)
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = (total + row[f"{metric}/sum"], count + row[f"{metric}/count"])

    def metrics(self) -> dict[str, float]:
        """The means, without those that have no value; of each kind the names with the most values."""
        found: dict[str, float] = {}
        for kind in {kind for kind, _, _ in self._sums}:
            seen: dict[str, int] = {}
            for (_, name, _), (_, count) in self._of(kind).items():
                seen[name] = max(seen.get(name, 0), count)
            kept = _most_frequent(seen)
            for (_, name, metric), (total, count) in self._of(kind).items():
                if name in kept and count:
                    prefix = f"{kind}/{slug(name)}" if name else kind
                    found[f"{prefix}/{metric}"] = total / count
        return found

    def _of(self, kind: str) -> dict[tuple[str, str, str], tuple[float, int]]:
        return {key: value for key, value in self._sums.items() if key[0] == kind}


def _turn_metrics(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """Means by role and by model, returns, reward parts, and how many groups teach something."""
    means = _Means()
    aligned = {name: tables[name] for name in ("turns", "rewards", "credit") if name in tables}
    for index in aligned_parts(aligned):
        turns = _joined_turns(tables, index)
        policy = ~pl.col("status").is_in(sorted(NOT_THE_POLICYS_DOING))
        spoken = turns.filter((pl.col("event") == "llm") & policy)
        for kind, column in (("role", "role"), ("model", "model_id")):
            means.add(kind, spoken, _TURN_MEANS, by=column)
            means.add(kind, _by_episode(spoken, ("return", "reward"), column), _EPISODE_MEANS, by=column)
        episodes = _by_episode(turns, ("return", "reward"))
        means.add("return", episodes, {"mean": pl.col("return")})
        means.add("reward", episodes, {"mean": pl.col("reward")})
        means.add("rollout", spoken, _CACHE)
        rounds = spoken.group_by("episode_id", maintain_order=True).agg(pl.col("round").max() + 1)
        means.add("rollout", rounds, {"rounds_mean": pl.col("round")})
        if "rewards" in tables:
            parts = _reward_parts(tables["rewards"].read_part(index, ["episode_id", "reward_parts"]))
            means.add("reward", _by_episode(parts, ("value",), "name"), {"mean": pl.col("value")}, by="name")
        if "credit" in tables:
            means.add("groups", _groups(turns), _GROUP_MEANS)
    metrics = means.metrics()
    cached, of = (metrics.pop(f"rollout/{name}", None) for name in _CACHE)
    if cached is not None and of:
        metrics["rollout/prefix_cached_rate"] = cached / of
    return metrics


def _by_episode(frame: pl.DataFrame, columns: Sequence[str], *keys: str) -> pl.DataFrame:
    return frame.group_by("episode_id", *keys, maintain_order=True).agg(pl.col(*columns).mean())


def _joined_turns(tables: Mapping[str, TableRef], index: int) -> pl.DataFrame:
    """Part `index` of `turns` with the columns of `rewards` and `credit`."""
    joined = _frame(tables["turns"].read_part(index, _TURN_COLUMNS))
    for name, columns in (("rewards", ("reward",)), ("credit", ("return", "advantage", "excluded"))):
        if name not in tables:
            joined = joined.with_columns(*(pl.lit(None, _DTYPES[c]).alias(c) for c in columns))
            continue
        other = _frame(tables[name].read_part(index, (*TURN_KEYS, *columns))).with_columns(_found=pl.lit(1))
        joined = joined.join(other, on=TURN_KEYS, how="left", maintain_order="left")
        if joined["_found"].count() != other.height:
            raise CadreError(
                f"part {index} of {name!r} has {other.height} rows, but {joined['_found'].count()} of the "
                f"{joined.height} turns of that part match one; the tables are not of the same iteration"
            )
        joined = joined.drop("_found")
    return joined


def _groups(turns: pl.DataFrame) -> pl.DataFrame:
    """One row a group: has it a turn to train on, and if so, are all its advantages zero?

    `no_signal` is null where the group has no advantages: none are usable, or credit gives none.
    """
    advantage = pl.col("advantage").filter(pl.col("excluded").is_null())
    return turns.group_by("group_id", maintain_order=True).agg(
        usable=(pl.col("excluded").is_null() & pl.col("return").is_not_null()).any(),
        no_signal=pl.when(advantage.count() > 0).then((advantage == 0).all()),
    )


def _reward_parts(rewards: pa.Table) -> pl.DataFrame:
    parts = _frame(rewards).explode("reward_parts").filter(pl.col("reward_parts").is_not_null())
    return parts.unnest("reward_parts")


def _update_metrics(model: str, table: TableRef) -> dict[str, float]:
    """The summary row of one model's update. A skipped update has its version and `skipped` 1."""
    summaries = [row for row in table.read().to_pylist() if row["kind"] == "summary"]
    if not summaries:
        return {}
    row = summaries[-1]
    metrics = {f"model/{model}/{m}": row[c] for c, m in _UPDATE_METRICS.items() if row[c] is not None}
    metrics[f"model/{model}/skipped"] = float(row["skipped"] is not None)
    if row["seconds"]:
        metrics[f"update/{model}/seconds"] = row["seconds"]
        if row["num_forward_tokens"]:
            metrics[f"update/{model}/tokens_per_second"] = row["num_forward_tokens"] / row["seconds"]
    return {name: float(value) for name, value in metrics.items()}


def _most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MAX_NAMES])


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
