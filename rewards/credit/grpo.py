"""GRPO: better or worse than the other plays of the same task, in units of how much they differ."""

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
class Grpo:
    """Advantage = (return - baseline) / deviation of the turn's group.

    The baseline is that of `group_relative`. The deviation is the sample standard deviation around
    it, episodes weighing the same: of one turn per episode, the usual one. A group whose returns are
    all equal, or of a single episode, gets exact zeros.
    Source: GRPO, arXiv:2402.03300. The options are those of `group_relative`.

    Raises:
        UsageError: an option has a value that it can't have.
    """

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_options("grpo", self.by, self.returns, self.gamma)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def check(self, group_size: int) -> None:
        check_group_size("grpo", group_size)

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        cell = (*self.group_keys, "episode_id")
        apart = pl.col("_above") - pl.col("_baseline")
        variance = pl.col("_square").filter(pl.col("_first")).sum().over(self.group_keys) / (
            pl.col("_episodes") - 1
        )
        equal = pl.col("_above").max().over(self.group_keys) == 0
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma)
            .with_columns(_square=(apart**2).mean().over(cell))
            .with_columns(
                advantage=pl.when(equal).then(0.0).otherwise(unless_alone(apart / (variance.sqrt() + 1e-8)))
            )
        )
