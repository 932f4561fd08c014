"""tasks, turns, episodes → rewards: per turn, every part kept; no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from rewards.scoring import (
    EPISODES_SEEN,
    TASKS_SEEN,
    TURNS_SEEN,
    Truncated,
    WeightedRewards,
    kind_of,
    score_variants,
)
from stages.base import Account, Context, Lease, Progress, StageResult, map_parts
from stages.tables import Part, TableRef, TableSink, aligned_parts
from workflows.trajectory import REWARDS, TURN_KEYS

FAILURES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class RewardStage:
    """Score every episode, part by part. See `rewards.scoring.score_turns` for who gets no reward."""

    rewards: WeightedRewards
    truncated: Truncated = "as_malformed"

    name: str = "reward"
    folder: str = "rewards"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": EPISODES_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"rewards": REWARDS}

    @property
    def places(self) -> dict[str, str]:
        return {"rewards": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        variants, sinks = [(self.rewards, self.truncated)], [outputs["rewards"]]
        return score_together(
            {name: inputs[name] for name in self.inputs}, sinks, variants, context.progress
        )[0]


def score_together(
    tables: Mapping[str, TableRef],
    sinks: Sequence[TableSink],
    variants: Sequence[tuple[WeightedRewards, Truncated]],
    progress: Progress,
) -> list[StageResult]:
    """What the stage does for each of several variants, which see the same turns: read once, part by part.

    A reward that several of them have, as one object, is computed once.
    """
    indices = aligned_parts(tables)
    progress.start("reward", len(indices), "part")
    receipts = map_parts(
        score_part,
        indices,
        on_done=lambda done: progress.advance(turns=done["variants"][0]["turns"]),
        tables=tables,
        sinks=sinks,
        variants=variants,
    )
    progress.finish()
    return [_result([receipt["variants"][k] for receipt in receipts]) for k in range(len(variants))]


def score_part(
    index: int,
    tables: Mapping[str, TableRef],
    sinks: Sequence[TableSink],
    variants: Sequence[tuple[WeightedRewards, Truncated]],
) -> dict[str, Any]:
    """Score part `index` and write it; the receipt has its part, counts and sums, for each variant."""
    tasks, turns, episodes = (
        tables[name].read_part(index, schema.names)
        for name, schema in (("tasks", TASKS_SEEN), ("turns", TURNS_SEEN), ("episodes", EPISODES_SEEN))
    )
    scored = score_variants(tasks, turns, episodes, variants)
    return {"variants": [_receipt(index, *each, turns) for each in zip(scored, sinks, strict=True)]}


def _receipt(index: int, scored: pa.Table, sink: TableSink, turns: pa.Table) -> dict[str, Any]:
    reasons = [r for r in scored["no_reward_reason"].to_pylist() if r is not None]
    return {
        "part": sink.write_part(index, scored),
        "turns": scored.num_rows,
        "excluded": Counter(kind_of(r) for r in reasons),
        "failures": sorted({r for r in reasons if kind_of(r) != r})[:FAILURES_SHOWN],
        "means": episode_means(scored, turns),
    }


def episode_means(rewards: pa.Table, turns: pa.Table) -> pl.DataFrame:
    """Per metric name: the sum over episodes of the episode's mean, their number, lowest and highest.

    An episode counts once whatever its number of turns, so that a workflow with more turns compares
    with one that has fewer.
    """
    frame = pl.DataFrame(rewards.drop_columns(["no_reward_reason"]))
    who = pl.DataFrame(turns.select([*TURN_KEYS, "role", "model_id"]))
    rewarded = frame.filter(pl.col("reward").is_not_null()).join(who, on=TURN_KEYS)
    part = pl.col("reward_parts").struct
    parts = rewarded.explode("reward_parts").with_columns(name=part.field("name"), value=part.field("value"))
    named = [
        rewarded.select("episode_id", "turn_index", name=pl.lit("reward"), value="reward"),
        *(
            frame.select("episode_id", "turn_index", name=prefix + pl.col(column), value=value)
            for frame, prefix, column, value in (
                (parts, pl.lit("reward/part/"), "name", "value"),
                (rewarded, pl.lit("reward/role/"), "role", "reward"),
                (rewarded, pl.lit("reward/model/"), "model_id", "reward"),
            )
        ),
    ]
    return (
        pl.concat(named)
        .drop_nulls("value")
        .sort("name", *TURN_KEYS)
        .group_by("name", "episode_id", maintain_order=True)
        .agg(pl.col("value").mean())
        .group_by("name", maintain_order=True)
        .agg(
            total=pl.col("value").sum(),
            episodes=pl.len(),
            low=pl.col("value").min(),
            high=pl.col("value").max(),
        )
    )


def _result(receipts: Sequence[Mapping[str, Any]]) -> StageResult:
    parts: list[Part] = [r["part"] for r in receipts]
    excluded: Counter[str] = Counter()
    for receipt in receipts:
        excluded.update(receipt["excluded"])
    turns = sum(r["turns"] for r in receipts)
    rewarded = turns - excluded.total()
    means = pl.concat([r["means"] for r in receipts]) if receipts else pl.DataFrame()
    metrics: dict[str, float] = {"rewarded_turns": rewarded, "turns_without_reward": excluded.total()}
    notes = [f"excluded, {failure}" for r in receipts for failure in r["failures"]][:FAILURES_SHOWN]
    for name, total, episodes, low, high in _merged(means):
        metrics[name] = total / episodes
        if episodes > 1 and low == high and name.startswith("reward/part/"):
            notes.append(
                f"reward {name.removeprefix('reward/part/')!r} is {low:g} for all {episodes} episodes: "
                "it can't tell good from bad here"
            )
    account = Account("turns to rewards", "turn", turns, rewarded, dict(sorted(excluded.items())))
    return StageResult({"rewards": parts}, [account], metrics, notes)


def _merged(means: pl.DataFrame) -> list[tuple[str, float, int, float, float]]:
    if not means.height:
        return []
    merged = means.group_by("name", maintain_order=True).agg(
        pl.col("total", "episodes").sum(), pl.col("low").min(), pl.col("high").max()
    )
    return merged.sort("name").rows()
