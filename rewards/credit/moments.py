"""Moments of numbers that lie in many parts, put together without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rewards.credit.equal import tolerance


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, summed squares around it, and range of some numbers.

    Merging parts gives what all numbers at once would give, up to rounding; merge in a fixed order to
    get the same bits. Source of the merge: Chan, Golub and LeVeque 1979.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        if not len(values):
            return cls()
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        return cls(len(values), mean, squares, float(values.min()), float(values.max()))

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def deviation(self) -> float:
        """The sample standard deviation; exactly 0 for fewer than two values, or for ones that are equal but
        for rounding."""
        if self.count < 2 or self.high - self.low <= tolerance(self.low, self.high):
            return 0.0
        return math.sqrt(self.squares / (self.count - 1))

    def whiten(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(values - mean) / deviation. Equal numbers, and a single one, give exact zeros."""
        if not self.deviation:
            return np.zeros_like(values)
        return (values - self.mean) / (self.deviation + 1e-8)


def survey(turns: pl.DataFrame, key: str, column: str) -> pl.DataFrame:
    """Moments of `column` for each value of `key`, as rows (key, count, mean, squares, low, high)."""
    rows = []
    for (name,), group in turns.sort(key, maintain_order=True).group_by(key, maintain_order=True):
        moments = Moments.of(group[column].to_numpy())
        rows.append((str(name), moments.count, moments.mean, moments.squares, moments.low, moments.high))
    return pl.DataFrame(rows, schema=SURVEY, orient="row")


SURVEY = {
    "key": pl.String,
    "count": pl.Int64,
    "mean": pl.Float64,
    "squares": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}


def merged(surveys: Iterable[pl.DataFrame]) -> dict[str, Moments]:
    """The surveys of all parts put together, by key, in the order given."""
    out: dict[str, Moments] = {}
    for part in surveys:
        for key, *numbers in part.select(list(SURVEY)).iter_rows():
            out[key] = out.get(key, Moments()).merge(Moments(*numbers))
    return out
