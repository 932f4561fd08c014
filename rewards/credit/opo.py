"""OPO: the baseline that makes the gradient's variance smallest, with lengths in the place of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from rewards.credit.grouping import Grouped, compare, unless_alone, without_helpers


@dataclass(frozen=True, slots=True)
class Opo(Grouped):
    """Advantage = return minus the mean return of the turn's group, in which each turn counts by its tokens.

    With returns R and response lengths l of the group's turns, the baseline is Σ l·R / Σ l. It is the one of
    least variance, Σ |∇log π|²·R / Σ |∇log π|², where the squared gradient of a reply grows with its length.
    Turns without a count of tokens count as one token. Nothing is divided by a standard deviation, and
    returns that are all equal give exact zeros.
    Source: OPO, arXiv:2505.23585, which has one turn to an episode and makes one optimizer step an iteration.
    Options: see `grouping.Grouped`.
    """

    method: ClassVar[str] = "opo"

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        length = pl.col("num_response_tokens").fill_null(1).clip(1).cast(pl.Float64)
        baseline = (length * pl.col("_above")).sum().over(self.group_keys) / length.sum().over(
            self.group_keys
        )
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(
                advantage=unless_alone(pl.col("_above") - baseline)
            )
        )
