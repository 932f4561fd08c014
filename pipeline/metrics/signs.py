"""What an alarm is, and how a sign is looked for in the metrics of iterations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

Metrics = Mapping[str, float]
Series = Sequence[tuple[int, Metrics]]
"""Finished iterations in order: the number of each, and its metrics."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """`where` is the role or model that it is about; empty for the whole team."""

    name: str
    where: str
    since: int  # the first of the iterations in a row
    what: str
    look: str

    @property
    def key(self) -> str:
        return f"{self.name}/{self.where}" if self.where else self.name

    def __str__(self) -> str:
        return f"{self.key} since iteration {self.since}: {self.what}; {self.look}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def above(name: str, limit: float) -> Callable[[Metrics, int], bool]:
    return lambda metrics, _: name in metrics and metrics[name] >= limit


def since_when(series: Series, sign: Callable[[Metrics, int], bool], iterations: int) -> int | None:
    """The first of the iterations in a row, up to the last, that have the sign; None for too few."""
    start = len(series)
    while start and sign(series[start - 1][1], start - 1):
        start -= 1
    return series[start][0] if len(series) - start >= iterations else None


def reference(series: Series, name: str, start: int, end: int, count: int) -> float | None:
    """Mean of a metric over the first `count` places from `start` on; None if they reach `end`."""
    values = [metrics[name] for _, metrics in series[start : start + count] if name in metrics]
    return fmean(values) if values and start + count <= end else None
