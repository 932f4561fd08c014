"""Returns without advantages: for methods that find the advantage later, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rewards.base import CreditHooks
from rewards.credit.grouping import check_returns
from rewards.credit.returns import Returns, add_return


@dataclass(frozen=True, slots=True)
class NoAdvantage(CreditHooks):
    """`return` only; the advantage is null. What GAE goes with: it reads rewards, not credit.

    Options:
        returns, gamma: see `rewards.credit.returns`.

    Raises:
        UsageError: an option has a value that it can't have.
    """

    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_returns("none", self.returns, self.gamma)

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return`, and `advantage` as null; one row per turn, sorted by key."""
        return add_return(turns, self.returns, self.gamma).with_columns(
            advantage=pl.lit(None, dtype=pl.Float64)
        )
