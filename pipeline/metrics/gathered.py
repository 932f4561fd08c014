"""Means, deviations and extremes of columns by name, gathered part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import polars as pl

from pipeline.metrics.names import most_frequent
from pipeline.settings.names import slug
from rewards.credit.moments import Moments

Statistic = Literal["mean", "std", "min", "max", "count"]


class Measure(NamedTuple):
    """A metric: an expression and the statistic of its values, in which nulls do not count."""

    of: pl.Expr
    statistic: Statistic = "mean"


def value_of(moments: Moments, statistic: Statistic) -> float:
    """`std` is the sample's standard deviation; of equal values it is exactly 0."""
    if statistic == "std":
        return moments.deviation
    return float(
        {"mean": moments.mean, "min": moments.low, "max": moments.high, "count": moments.count}[statistic]
    )


class Gathered:
    """Metrics `<kind>/<name>/<metric>` over all the frames that were added; an empty name is left out."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, str, str], Moments] = {}
        self._statistics: dict[tuple[str, str], Statistic] = {}

    def add(
        self, kind: str, frame: pl.DataFrame, measures: Mapping[str, Measure], by: str | None = None
    ) -> None:
        """Add the rows of `frame`: of each value of column `by`, or all of them under no name."""
        named = frame.with_columns(_name=pl.lit("") if by is None else pl.col(by))
        values = {metric: measure.of.cast(pl.Float64) for metric, measure in measures.items()}
        measured = named.group_by("_name", maintain_order=True).agg(
            pl.struct(
                v.count().alias("count"),
                v.mean().alias("mean"),
                (v.var(ddof=0) * v.count()).alias("squares"),
                v.min().alias("low"),
                v.max().alias("high"),
            ).alias(metric)
            for metric, v in values.items()
        )
        for row in measured.iter_rows(named=True):
            for metric, measure in measures.items():
                self._statistics[kind, metric] = measure.statistic
                if row[metric]["count"]:
                    self._merge((kind, row["_name"] or "", metric), Moments(**row[metric]))

    def metrics(self) -> dict[str, float]:
        """The metrics that have a value; in each kind only the names with the most values."""
        statistics: dict[str, float] = {}
        for kind in dict.fromkeys(kind for kind, _, _ in self._moments):
            of_kind = {key: value for key, value in self._moments.items() if key[0] == kind}
            seen: dict[str, int] = {}
            for (_, name, _), moments in of_kind.items():
                seen[name] = max(seen.get(name, 0), moments.count)
            kept = most_frequent(seen)
            for (_, name, metric), moments in of_kind.items():
                if name in kept:
                    prefix = f"{kind}/{slug(name)}" if name else kind
                    statistics[f"{prefix}/{metric}"] = value_of(moments, self._statistics[kind, metric])
        return statistics

    def _merge(self, key: tuple[str, str, str], new: Moments) -> None:
        before = self._moments.get(key)
        self._moments[key] = new if before is None else before.merge(new)
