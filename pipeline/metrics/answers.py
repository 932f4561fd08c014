"""Metrics of teams whose members answer the task themselves: who was right, and what became of it. Pure.

They are made of stored rewards alone, by the names of their parts: `branch_right` for each answer of a
branch, `final_right` for the team's, `satisfied` for a verdict (`rewards.team_answers`). So they mean the
same for every workflow, and a replay has them too.
"""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa

from pipeline.metrics.gathered import Gathered, Measure
from stages.tables.parquet import TableRef
from workflows.trajectory import TURN_KEYS

BRANCH, FINAL, VERDICT = "branch_right", "final_right", "satisfied"

ANSWERS: Final = {
    "branches_mean": Measure(pl.col("branches")),
    "branch_right_rate": Measure(pl.col("share")),
    "any_right_rate": Measure(pl.col("any")),
    "majority_right_rate": Measure(pl.col("majority")),
    "final_right_rate": Measure(pl.col("final")),
    "lost_rate": Measure(pl.col("any") & ~pl.col("final")),
    "rescued_rate": Measure(~pl.col("any") & pl.col("final")),
    "satisfied_rate": Measure(pl.col("satisfied")),
}
"""Measures of the frame that `answers_by_episode` gives; a null does not count in its own."""


def answers_by_episode(parts: pl.DataFrame) -> pl.DataFrame:
    """One row for each episode with a graded answer.

    Args:
        parts: `episode_id`, `turn_index`, `name` and `value` of reward parts.

    Returns:
        `branches`, `share` of them that are right, `any`, `majority` (more than half of them), `final` and
        `satisfied` (by the last verdict). Null where the episode has no such answer.
    """
    graded = parts.filter(pl.col("name").is_in([BRANCH, FINAL, VERDICT]), pl.col("value").is_not_null())

    def of(name: str) -> pl.Expr:
        return pl.col("value").filter(pl.col("name") == name)

    branches = of(BRANCH).count()
    return (
        graded.sort("episode_id", "turn_index")
        .group_by("episode_id", maintain_order=True)
        .agg(
            branches=branches,
            share=of(BRANCH).mean(),
            any=pl.when(branches > 0).then((of(BRANCH) > 0).any()),
            majority=pl.when(branches > 0).then(of(BRANCH).mean() > 0.5),
            final=of(FINAL).last() > 0,
            satisfied=of(VERDICT).last() > 0,
        )
    )


def answer_metrics(rewards: TableRef) -> dict[str, float]:
    """The metrics `answers/…` of a table of rewards; none where no answer is graded."""
    gathered = Gathered()
    for index in range(len(rewards.parts)):
        parts = reward_parts(rewards.read_part(index, [*TURN_KEYS, "reward_parts"]))
        gathered.add("answers", answers_by_episode(parts), ANSWERS)
    return gathered.metrics()


def reward_parts(rewards: pa.Table) -> pl.DataFrame:
    """One row for each part of each turn's reward: the turn's keys, `name` and `value`."""
    frame = pl.from_arrow(rewards)
    assert isinstance(frame, pl.DataFrame)
    parts = frame.explode("reward_parts").filter(pl.col("reward_parts").is_not_null())
    return parts.unnest("reward_parts")
