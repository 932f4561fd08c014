"""RLOO: each play against the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from rewards.credit.grouping import Grouped, compare, unless_alone, without_helpers


@dataclass(frozen=True, slots=True)
class Rloo(Grouped):
    """Advantage = return minus the mean over the group's other episodes.

    The turn's own episode is not in its baseline, which leaves the policy gradient without bias.
    Source: RLOO, arXiv:2402.14740. Options: see `grouping.Grouped`.
    """

    method: ClassVar[str] = "rloo"

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        episodes = pl.col("_episodes")
        others = (pl.col("_baseline") * episodes - pl.col("_episode_mean")) / (episodes - 1)
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(
                advantage=unless_alone(pl.col("_above") - others)
            )
        )
