"""Group-relative credit: better or worse than the other plays of the same task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from rewards.credit.grouping import Grouped, compare, unless_alone, without_helpers


@dataclass(frozen=True, slots=True)
class GroupRelative(Grouped):
    """Advantage = return minus the baseline of the turn's group, the mean of its episodes.

    Nothing is divided by a standard deviation. A group whose returns are all equal gets exact zeros,
    and so does a group of a single episode. Also by the name "dr_grpo".
    Sources: GRPO, arXiv:2402.03300; without the deviation, Dr. GRPO, arXiv:2503.20783; one baseline for
    each role and turn, arXiv:2510.11062.

    Options: see `grouping.Grouped`.
    """

    method: ClassVar[str] = "group_relative"

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        advantage = unless_alone(pl.col("_above") - pl.col("_baseline"))
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(advantage=advantage)
        )
