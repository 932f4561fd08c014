"""Rank-normal credit: only the order of a group's returns counts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import polars as pl

from rewards.credit.equal import are_equal
from rewards.credit.grouping import Grouped
from rewards.credit.returns import add_return


@dataclass(frozen=True, slots=True)
class RankNormal(Grouped):
    """Advantage = the normal score of the return's rank among the turns of its group.

    Ranks (ties share their mean rank) go through the inverse normal distribution, so that an outlier
    counts as much as any best return, and rewards of any scale compare. A group whose returns are all
    equal, or of one turn, gets exact zeros.
    Source: Blom 1958, (rank - 3/8) / (n + 1/4); ranks as fitness, arXiv:1703.03864.
    Options: see `grouping.Grouped`.
    """

    method: ClassVar[str] = "rank_normal"

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        ranked = self._with_places(add_return(turns, self.returns, self.gamma)).with_columns(
            _share=(pl.col("_place").rank("average").over(self.group_keys) - 0.375)
            / (pl.len().over(self.group_keys) + 0.25)
        )
        shares = ranked.select("_share").unique().sort("_share")
        scores = [NormalDist().inv_cdf(share) for share in shares["_share"]]
        table = shares.with_columns(advantage=pl.Series(scores, dtype=pl.Float64))
        return ranked.join(table, on="_share", how="left", maintain_order="left").drop("_share", "_place")

    def _with_places(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `_place`, which grows with the return in each group; returns that count as equal share one."""
        before = pl.col("return").shift(1).over(self.group_keys)
        is_next = (~are_equal(before, pl.col("return"))).fill_null(False).cast(pl.Int64)
        return (
            turns.with_row_index("_row")
            .sort(*self.group_keys, "return", nulls_last=True, maintain_order=True)
            .with_columns(_place=is_next)
            .with_columns(_place=pl.col("_place").cum_sum().over(self.group_keys))
            .sort("_row")
            .drop("_row")
        )
