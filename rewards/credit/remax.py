"""ReMax: each play against what the policy does greedily."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rewards.base import CreditHooks
from rewards.credit.equal import are_equal
from rewards.credit.grouping import BY_OPTIONS, By, check_options
from rewards.credit.returns import Returns, add_return
from workflows.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Remax(CreditHooks):
    """Advantage = return minus the return of the greedy play of the same task.

    The greedy play is one more episode of each task, at temperature 0, which is not trained on. A turn is
    compared with the mean of the greedy play's turns that `by` puts beside it; one that has none there, as
    the greedy play took another way or failed, has no advantage, and is left out and counted. Groups of one
    sampled play are enough. A return that equals its baseline gives exactly 0.
    Source: ReMax, arXiv:2310.10505, which has one turn to an episode.

    Options:
        by, returns, gamma: as in `group_relative`.

    Raises:
        UsageError: an option has a value that it can't have.
    """

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    needs_greedy = True

    def __post_init__(self) -> None:
        check_options("remax", self.by, self.returns, self.gamma)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, greedy ones too, sorted by key.

        Raises:
            SchemaError: there is no column `greedy`, so no play is greedy.
        """
        if "greedy" not in turns.columns:
            raise SchemaError(
                "credit remax got turns without the column greedy, which marks the greedy plays"
            )
        baseline = pl.col("return").filter(pl.col("greedy")).mean().over(self.group_keys)
        above = (
            pl.when(are_equal(baseline, pl.col("return"))).then(0.0).otherwise(pl.col("return") - baseline)
        )
        return add_return(turns, self.returns, self.gamma).with_columns(advantage=above)
