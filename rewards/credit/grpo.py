"""GRPO: better or worse than the other plays of the same task, in units of how much they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from rewards.credit.grouping import Grouped, compare, unless_alone, without_helpers


@dataclass(frozen=True, slots=True)
class Grpo(Grouped):
    """Advantage = (return - baseline) / deviation of the turn's group.

    The baseline is that of `group_relative`. The deviation is the sample standard deviation around
    it, episodes weighing the same: of one turn per episode, the usual one. A group whose returns are
    all equal, or of a single episode, gets exact zeros.
    Source: GRPO, arXiv:2402.03300. Options: see `grouping.Grouped`.
    """

    method: ClassVar[str] = "grpo"

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
