"""Rejection sampling: the turns that earned it are imitated, the others are not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from rewards.base import CreditHooks
from rewards.credit.equal import tolerance_of
from rewards.credit.grouping import BY_OPTIONS, By, check_options, compare, without_helpers
from rewards.credit.returns import Returns
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rejection(CreditHooks):
    """Advantage = 1 for turns that are worth imitating, 0 for the others: weights for a supervised loss.

    Source: rejection sampling fine-tuning, arXiv:2307.09288, arXiv:2308.01825.

    Options:
        at_least: the lowest return that is imitated; None has no such bound.
        best: True imitates only turns of the episode that is best in its group (the first, where
            several are); so an easy task does not count for more than a hard one.
        by, returns, gamma: as in `group_relative`.

    Raises:
        UsageError: an option has a value that it can't have, or neither bound is set.
    """

    at_least: float | None = None
    best: bool = False
    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    gives_weights = True  # never negative: fit for the supervised loss

    def __post_init__(self) -> None:
        check_options("rejection", self.by, self.returns, self.gamma)
        if self.at_least is None and not self.best:
            raise UsageError(
                "credit rejection: give at_least = a return, or best = true; without either every turn would "
                "be imitated"
            )
        if self.at_least is not None and not math.isfinite(self.at_least):
            raise UsageError(f"credit rejection: at_least is {self.at_least}; use a finite number")

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        keep = pl.lit(True)
        if self.at_least is not None:
            bound = pl.lit(self.at_least)
            keep = pl.col("return") >= bound - tolerance_of(bound)
        if self.best:
            best = pl.col("_episode_mean").max().over(self.group_keys)
            highest = pl.col("_episode_mean") >= best - tolerance_of(pl.col("_low"), pl.col("_high"))
            winner = pl.col("episode_id").filter(highest).first().over(self.group_keys)
            keep = keep & (pl.col("episode_id") == winner)
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(advantage=keep.cast(pl.Float64))
        )
