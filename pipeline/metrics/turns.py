"""Metrics of what was played: episodes, turns, tools, rewards and credit. Pure.

Tables are read part by part, only the columns that are needed, so a million turns need the memory of
one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from pipeline.metrics.answers import ANSWERS, answers_by_episode, reward_parts
from pipeline.metrics.gathered import Gathered, Measure
from pipeline.metrics.names import most_frequent
from pipeline.settings.names import slug
from stages.tables.parquet import TableRef, aligned_parts
from workflows.errors import CadreError
from workflows.trajectory import TURN_KEYS
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Event, Move, Origin, Status

_TURN_COLUMNS: Final = (
    *(*TURN_KEYS, "task_id", "group_id", "round", "step", "event", "role", "model_id", "trainable", "tool"),
    *("status", "format_valid", "num_prompt_tokens", "num_response_tokens", "num_cached_tokens"),
    *("behaviour_logprobs", "attempts", "queued_at", "started_at", "ended_at", "origin"),
)
_DTYPES: Final = {"reward": pl.Float64, "return": pl.Float64, "advantage": pl.Float64, "excluded": pl.String}

_FAILED = pl.col("status").is_in(sorted(NOT_THE_POLICYS_DOING))
# of another episode: nobody was asked, and what was sampled counts once, in that episode
_COPIED = pl.col("origin").eq_missing(pl.lit(str(Origin.COPIED)))
_SECONDS = pl.col("ended_at") - pl.coalesce("started_at", "queued_at")

# Of the llm turns of a role or a model. Turns that failed through no doing of the policy (infra_error,
# timeout, cancelled) do not count; a null does not count in its own metric.
_CREDITED: Final = {
    "advantage_abs_mean": Measure(pl.col("advantage").abs()),
    "advantage_std": Measure(pl.col("advantage"), "std"),
}
# The same, but for copies of turns of another episode.
_SPOKEN: Final = {
    "format_valid_rate": Measure(pl.col("format_valid")),
    "prompt_tokens_mean": Measure(pl.col("num_prompt_tokens")),
    "response_tokens_mean": Measure(pl.col("num_response_tokens")),
    "response_tokens_max": Measure(pl.col("num_response_tokens"), "max"),
    "truncated_rate": Measure(pl.col("status") == Status.TRUNCATED),
    "malformed_rate": Measure(pl.col("status") == Status.MALFORMED),
    "sampled_entropy": Measure(pl.col("sampled_entropy")),
    "seconds_mean": Measure(_SECONDS),
    "queued_seconds_mean": Measure(pl.col("started_at") - pl.col("queued_at")),
}
# Of all its llm turns that were asked, and of those that could be trained on, copies among them.
_ASKED: Final = {
    "turns": Measure(pl.when(~_COPIED).then(pl.col("turn_index")), "count"),
    "failed_rate": Measure(pl.when(~_COPIED).then(_FAILED)),
    "excluded_rate": Measure(
        pl.when(pl.col("trainable") & pl.col("has_credit")).then(pl.col("excluded").is_not_null())
    ),
}
# Returns and rewards are averaged within the episode first, so an episode weighs the same whatever its
# turns.
_EARNED: Final = {
    "return_mean": Measure(pl.col("return")),
    "return_std": Measure(pl.col("return"), "std"),
    "reward_mean": Measure(pl.col("reward")),
}
_TOOLS: Final = {
    "calls": Measure(pl.col("turn_index"), "count"),
    "success_rate": Measure(pl.col("status") == Status.OK),
    "failed_rate": Measure(_FAILED),
    "attempts_mean": Measure(pl.col("attempts")),
    "seconds_mean": Measure(_SECONDS),
}
_CONTROLS: Final = {
    "turns": Measure(pl.col("turn_index"), "count"),
    "failed_rate": Measure(_FAILED),
}
_MISSING: Final = pl.when(pl.col("value").is_null()).then(1)  # an episode without a value of a reward
EVENT_GROUPS: Final[Mapping[Event, Mapping[str, str]]] = {
    Event.LLM: {"role": "role", "model": "model_id"},
    Event.TOOL: {"tool": "tool"},
    Event.CONTROL: {"control": "step"},
}
"""The groups of metrics that turns of an event go into, each with the column that names its members."""
_GROUPS: Final = {"usable_rate": Measure(pl.col("usable")), "no_signal_rate": Measure(pl.col("no_signal"))}
_AGAIN: Final = {"tool_calls_again": Measure(pl.col("turn_index"), "count")}
# of sampled turns: those whose engine says how much of the prompt it had cached
_CACHE: Final = {
    "cached": Measure(pl.col("num_cached_tokens")),
    "of": Measure(pl.when(pl.col("num_cached_tokens").is_not_null()).then(pl.col("num_prompt_tokens"))),
}


def episode_metrics(episodes: TableRef, seconds: float | None) -> dict[str, float]:
    """Counts, tokens and rates of the episodes that were played, in `seconds` of rollout.

    Tokens are those that were asked and sampled. Where episodes begin with turns of others, `copied_tokens`
    has the response tokens of these.
    """
    columns = ("num_turns", "num_prompt_tokens", "num_response_tokens", "num_copied_tokens", "seconds")
    parts = []
    for index in range(len(episodes.parts)):
        played = _frame(episodes.read_part(index, ("status", "stop_reason", "base_episode_id", *columns)))
        copies = pl.col("base_episode_id").count().alias("copies")
        sums = [*(pl.col(c).sum() for c in columns), copies]
        longest = pl.col("seconds").max().alias("longest")
        parts.append(played.group_by("status", "stop_reason").agg(pl.len().alias("episodes"), *sums, longest))
    if not parts or not episodes.rows:
        return {"rollout/episodes": 0.0}
    kinds = pl.concat(parts)
    total = kinds.select(pl.col("episodes", "copies", *columns).sum(), pl.col("longest").max()).row(
        0, named=True
    )
    counts = _counts(kinds, "status")
    metrics = {f"rollout/status/{status}": float(counts.get(status, 0)) for status in Status}
    metrics |= {f"rollout/status/{slug(s)}": float(n) for s, n in counts.items() if s not in set(Status)}
    stopped = most_frequent(_counts(kinds, "stop_reason"))
    metrics |= {f"rollout/stop/{slug(reason)}": float(n) for reason, n in stopped.items()}
    failed = sum(counts.get(status, 0) for status in NOT_THE_POLICYS_DOING)
    metrics["rollout/failed_rate"] = failed / total["episodes"]
    metrics["rollout/episodes"] = float(total["episodes"])
    metrics["rollout/turns"] = float(total["num_turns"])
    metrics["rollout/prompt_tokens"] = float(total["num_prompt_tokens"])
    metrics["rollout/response_tokens"] = float(total["num_response_tokens"])
    if total["copies"]:
        metrics["rollout/copied_tokens"] = float(total["num_copied_tokens"])
    metrics["rollout/episode_seconds_mean"] = total["seconds"] / total["episodes"]
    metrics["rollout/episode_seconds_max"] = total["longest"]
    if seconds:
        metrics["rollout/tokens_per_second"] = total["num_response_tokens"] / seconds
        metrics["rollout/episodes_per_second"] = total["episodes"] / seconds
    return {name: value for name, value in metrics.items() if value is not None}


def turn_metrics(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """By role, model, tool and source of tasks; returns, reward parts, and how many groups teach something.

    Raises:
        CadreError: the parts of `turns`, `rewards` and `credit` do not hold the same turns.
    """
    gathered = Gathered()
    aligned = {name: tables[name] for name in ("tasks", "turns", "rewards", "credit") if name in tables}
    for index in aligned_parts(aligned):
        _add_part(gathered, tables, index)
    metrics = gathered.metrics() | step_metrics(tables)
    counted = _counted(metrics)
    metrics = {name: value for name, value in metrics.items() if name not in {f"{n}/count" for n in counted}}
    if "episodes" in tables and (episodes := tables["episodes"].rows):
        # beside each mean over episodes that have a value the one over all: those without count as 0
        means = {name: metrics[f"{name}/mean"] for name in counted}
        metrics |= {f"{name}/mean_of_asked": means[name] * counted[name] / episodes for name in counted}
    cached, of = (metrics.pop(f"rollout/{name}", None) for name in _CACHE)
    if cached is not None and of:
        metrics["rollout/prefix_cached_rate"] = cached / of
    sources = {name.split("/")[1] for name in metrics if name.startswith("source/")}
    if len(sources) == 1:  # it would repeat return/mean
        metrics = {name: value for name, value in metrics.items() if not name.startswith("source/")}
    rounds = {name.split("/")[1] for name in metrics if name.startswith("round/")}
    if len(rounds) == 1:  # no loop: it would repeat reward/<reward>/mean
        metrics = {name: value for name, value in metrics.items() if not name.startswith("round/")}
    return metrics


def step_metrics(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """How often a step runs in an episode, and how often a reply of it chose each `Move`: what loops and
    choices come to. Steps of controls are counted elsewhere."""
    turns = tables["turns"]
    counts: dict[tuple[str, str], int] = {}
    ids: set[str] = set()
    for index in range(len(turns.parts)):
        rows = _frame(turns.read_part(index, ("episode_id", "step", "event", "parsed")))
        ids |= set(rows["episode_id"])
        asked = rows.filter((pl.col("event") != Event.CONTROL) & pl.col("step").is_not_null())
        chosen = asked.filter(pl.col("parsed").str.starts_with("{")).with_columns(
            what=pl.col("parsed").str.json_path_match("$.action")
        )
        chosen = chosen.filter(pl.col("what").is_in([str(move) for move in Move]))
        for frame in (asked.with_columns(what=pl.lit("turns")), chosen):
            for step, what, count in frame.group_by("step", "what").len().iter_rows():
                counts[step, what] = counts.get((step, what), 0) + count
    episodes = tables["episodes"].rows if "episodes" in tables else len(ids)
    steps = most_frequent({step: count for (step, what), count in counts.items() if what == "turns"})
    return {
        f"step/{slug(step)}/{what}_mean": count / episodes
        for (step, what), count in sorted(counts.items())
        if step in steps and episodes
    }


def _add_part(gathered: Gathered, tables: Mapping[str, TableRef], index: int) -> None:
    turns = _joined_turns(tables, index)
    asked = turns.filter(pl.col("event") == Event.LLM)
    spoken = asked.filter(~_FAILED)
    sampled = spoken.filter(~_COPIED)
    episodes = _by_episode(turns, ("return", "reward"), "task_id")
    for name in ("return", "reward"):
        gathered.add(name, episodes, _spread(name, "mean", "std", "min", "max", "count"))
    for kind, column in EVENT_GROUPS[Event.LLM].items():
        gathered.add(kind, asked, _ASKED, by=column)
        gathered.add(kind, spoken, _CREDITED, by=column)
        gathered.add(kind, sampled, _SPOKEN, by=column)
        gathered.add(kind, _by_episode(spoken, ("return", "reward"), column), _EARNED, by=column)
    for event, measures in ((Event.TOOL, _TOOLS), (Event.CONTROL, _CONTROLS)):
        for kind, column in EVENT_GROUPS[event].items():
            asked_now = turns.filter((pl.col("event") == event) & ~_COPIED)
            gathered.add(kind, asked_now, measures, by=column)
    gathered.add("rollout", sampled, _CACHE)
    gathered.add("rollout", turns.filter(pl.col("origin") == Origin.REPLAYED), _AGAIN)
    rounds = spoken.group_by("episode_id", maintain_order=True).agg(pl.col("round").max() + 1)
    gathered.add("rollout", rounds, {"rounds_mean": Measure(pl.col("round"))})
    if "rewards" in tables:
        parts = reward_parts(tables["rewards"].read_part(index, [*TURN_KEYS, "reward_parts"]))
        gathered.add(
            "reward",
            _by_episode(parts, ("value",), "name"),
            _spread("value", "mean", "std", "count") | {"missing": Measure(_MISSING, "count")},
            by="name",
        )
        gathered.add("answers", answers_by_episode(parts), ANSWERS)
        _add_rounds(gathered, parts, turns)
    if "credit" in tables:
        gathered.add("groups", _groups(turns), _GROUPS)
        gathered.add("rows", asked, {"trainable_excluded_rate": _ASKED["excluded_rate"]})
    if "tasks" in tables:
        sources = _frame(tables["tasks"].read_part(index, ("task_id", "source")))
        of_source = episodes.join(sources, on="task_id", how="left", maintain_order="left")
        gathered.add("source", of_source, _EARNED | {"episodes": Measure(pl.lit(1), "count")}, by="source")


def _add_rounds(gathered: Gathered, parts: pl.DataFrame, turns: pl.DataFrame) -> None:
    """The parts of rewards by the round of a loop that their turns are of."""
    rounds = turns.select(*TURN_KEYS, pl.col("round").cast(pl.String))
    of_rounds = parts.join(rounds, on=TURN_KEYS, how="left", maintain_order="left").drop_nulls("round")
    values = _by_episode(of_rounds, ("value",), "name", "round")
    for name in values["name"].unique(maintain_order=True):
        measure = {f"{slug(name)}_mean": Measure(pl.col("value"))}
        gathered.add("round", values.filter(pl.col("name") == name), measure, by="round")


def _counted(metrics: Mapping[str, float]) -> dict[str, float]:
    """The returns and rewards that are means over episodes, each with how many episodes it is over."""
    names = [n.removesuffix("/count") for n in metrics if n.endswith("/count")]
    return {n: metrics[f"{n}/count"] for n in names if n.split("/")[0] in ("return", "reward")}


def _spread(column: str, *statistics: str) -> dict[str, Measure]:
    return {statistic: Measure(pl.col(column), statistic) for statistic in statistics}  # type: ignore[arg-type]


def _counts(kinds: pl.DataFrame, column: str) -> dict[str, int]:
    """How many episodes each value of a column has, nulls aside."""
    counts = kinds.drop_nulls(column).group_by(column).agg(pl.col("episodes").sum()).sort(column)
    return dict(counts.iter_rows())


def _by_episode(frame: pl.DataFrame, columns: Sequence[str], *keys: str) -> pl.DataFrame:
    return frame.group_by("episode_id", *keys, maintain_order=True).agg(pl.col(*columns).mean())


def _joined_turns(tables: Mapping[str, TableRef], index: int) -> pl.DataFrame:
    """Part `index` of `turns` with the columns of `rewards` and `credit`."""
    joined = _frame(tables["turns"].read_part(index, _TURN_COLUMNS))
    joined = joined.with_columns(
        sampled_entropy=-pl.col("behaviour_logprobs").list.mean().cast(pl.Float64),
        has_credit=pl.lit("credit" in tables),
    ).drop("behaviour_logprobs")
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


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
