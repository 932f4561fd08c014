"""RLOO: each play against the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rewards.credit.grouping import (
    BY_OPTIONS,
    By,
    check_group_size,
    check_options,
    compare,
    unless_alone,
    without_helpers,
)
from rewards.credit.returns import Returns


@dataclass(frozen=True, slots=True)
class Rloo:
    """Advantage = return minus the mean over the group's other episodes.

    The turn's own episode is not in its baseline, which leaves the policy gradient without bias.
    Source: RLOO, arXiv:2402.14740. The options are those of `group_relative`.

    Raises:
        UsageError: an option has a value that it can't have.
    """

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_options("rloo", self.by, self.returns, self.gamma)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def check(self, group_size: int) -> None:
        check_group_size("rloo", group_size)

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        episodes = pl.col("_episodes")
        others = (pl.col("_baseline") * episodes - pl.col("_episode_mean")) / (episodes - 1)
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(
                advantage=unless_alone(pl.col("_above") - others)
            )
        )
