"""Rank-normal credit: only the order of a group's returns counts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import polars as pl

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
        ranked = add_return(turns, self.returns, self.gamma).with_columns(
            _share=(pl.col("return").rank("average").over(self.group_keys) - 0.375)
            / (pl.len().over(self.group_keys) + 0.25)
        )
        shares = ranked.select("_share").unique().sort("_share")
        scores = [NormalDist().inv_cdf(share) for share in shares["_share"]]
        table = shares.with_columns(advantage=pl.Series(scores, dtype=pl.Float64))
        return ranked.join(table, on="_share", how="left", maintain_order="left").drop("_share")
