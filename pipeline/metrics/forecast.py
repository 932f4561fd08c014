"""Tokens, minutes and memory to come, from what was measured, each with a range. Pure.

What is measured is a *pace*: for iterations, their tokens, their wall time without starts of engines and
trainers, and their peak of memory; for evaluations, their wall time. Where it is from decides how wide the
range is: the run itself is the best source, then a stored run like it on this kind of machine, then a probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any, Final, Literal

from stages.evaluate import students_t

Source = Literal["run", "stored", "similar", "probe"]

# By source: a factor below and above the middle for tokens, seconds and memory. A run's own pace is narrower
# the more iterations it has; what other work does on the machine is in none of them.
_WIDTHS: Final[Mapping[Source, tuple[tuple[float, float], ...]]] = {
    "run": ((0.8, 1.25), (0.7, 1.5), (0.95, 1.25)),
    "stored": ((0.7, 1.4), (0.6, 1.7), (0.8, 1.3)),
    "similar": ((0.6, 1.6), (0.4, 2.5), (0.5, 2.0)),
    "probe": ((0.5, 1.8), (0.4, 1.8), (0.8, 1.5)),
}
_LEAST_TOKENS: Final = 0.1  # half of the narrowest range, relative: replies grow and shrink in training
_LEAST_SECONDS: Final = 0.15
COLD_SECONDS: Final = 1.0  # of a call's first iteration that no later one needs: first passes of everything
_LEAST_SHARE: Final = 0.3  # of an iteration's time that the smallest evaluation takes
_COLD_SHARE: Final = 0.6  # of a short one, at most
RECENT: Final = 10  # iterations that a pace is taken from


@dataclass(frozen=True, slots=True)
class Range:
    """A forecast of one number: the middle, and the ends between which it is expected in 8 of 10 cases."""

    low: float
    middle: float
    high: float

    def holds(self, truth: float) -> bool:
        return self.low <= truth <= self.high

    def error(self, truth: float) -> float:
        """How far the middle is from the truth, relative to it."""
        return abs(self.middle - truth) / truth if truth else math.inf if self.middle else 0.0

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.middle + other.middle, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration as it was measured."""

    tokens: float
    seconds: float  # wall, without starts
    memory_gib: float | None = None
    episodes: float = 0.0
    is_cold: bool = False  # the first of a call


@dataclass(frozen=True, slots=True)
class Pace:
    """What was measured, and where. `starts` are the seconds that a start of all processes takes."""

    source: Source
    where: str  # for people: "this run", "run voting-2"
    steps: Sequence[Step]
    evaluations: Sequence[float] = ()  # seconds of each
    starts: float | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is to come: iterations, evaluations, and whether processes start first (`starts`)."""

    iterations: int
    evaluations: int = 0
    starts: bool = True
    episodes: float = 0.0  # of one iteration; 0: as many as were measured
    evaluated_episodes: float = 0.0  # of one evaluation


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to come, and where that is from."""

    iterations: int
    tokens: Range
    seconds: Range
    memory_gib: Range | None
    source: Source
    where: str
    measured: int = 0  # iterations that it is made from

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Forecast:
        ranges = {
            name: None if values[name] is None else Range(**values[name])
            for name in ("tokens", "seconds", "memory_gib")
        }
        return cls(**{**values, **ranges})


def forecast(pace: Pace, ahead: Ahead) -> Forecast:
    """What is to come at this pace.

    Raises:
        ValueError: nothing was measured.
    """
    if not pace.steps:
        raise ValueError("a forecast needs at least one measured iteration")
    warm = [step for step in pace.steps if not step.is_cold]
    steps = warm[-RECENT:] or [_warmed(step) for step in pace.steps]
    measured = fmean(step.episodes for step in steps)
    scale = ahead.episodes / measured if ahead.episodes and measured else 1.0
    tokens = _spread([s.tokens * scale for s in steps], ahead.iterations, pace.source, 0, _LEAST_TOKENS)
    rate = [s.seconds * scale for s in steps]
    seconds = _spread(rate, ahead.iterations, pace.source, 1, _LEAST_SECONDS)
    seconds += _evaluations(pace, ahead, fmean(rate), measured * scale)
    if ahead.starts:
        seconds += _factors(pace.starts or 0.0, _WIDTHS["stored"][1])
    peaks = [s.memory_gib for s in steps if s.memory_gib is not None]
    memory = _factors(max(peaks), _WIDTHS[pace.source][2]) if peaks else None
    return Forecast(ahead.iterations, tokens, seconds, memory, pace.source, pace.where, len(steps))


def _warmed(step: Step) -> Step:
    """A call's first iteration as a later one would be."""
    return replace(step, seconds=step.seconds - min(COLD_SECONDS, _COLD_SHARE * step.seconds))


def _spread(values: Sequence[float], count: int, source: Source, kind: int, least: float) -> Range:
    """The sum of `count` more of these: of three or more of the run itself by how they vary."""
    # one that a hiccup made long says little of the others
    middle = (median(values) if len(values) >= 3 else fmean(values)) * count
    if source != "run" or len(values) < 3 or not middle:
        return _factors(middle, _WIDTHS[source][kind])
    n, mean = len(values), fmean(values)
    spread = students_t(n - 1) * stdev(values) / mean * math.sqrt(1 / n + 1 / max(count, 1)) if mean else 0.0
    half = min(max(least, spread), 0.5)
    return Range(middle * (1 - half), middle, middle * (1 + 1.5 * half))


def _evaluations(pace: Pace, ahead: Ahead, iteration_seconds: float, episodes: float) -> Range:
    """The time of evaluations: as those that were measured, or as the plays of training."""
    if not ahead.evaluations:
        return Range(0.0, 0.0, 0.0)
    share = ahead.evaluated_episodes / episodes if episodes else 1.0
    if len(pace.evaluations) == 1:  # the first one of a run is as cold as its first iteration
        plays = iteration_seconds * max(share, _LEAST_SHARE)
        return _factors(min(pace.evaluations[0], plays) * ahead.evaluations, (0.3, 2.5))
    if pace.evaluations:
        widths = _WIDTHS[pace.source][1]
        return _factors(median(list(pace.evaluations)[-RECENT:]) * ahead.evaluations, widths)
    return _factors(iteration_seconds * share * 0.5 * ahead.evaluations, (0.3, 2.5))


def _factors(middle: float, factors: tuple[float, float]) -> Range:
    return Range(middle * factors[0], middle, middle * factors[1])


@dataclass(frozen=True, slots=True)
class Made:
    """A forecast that was made, and what came of it; None where that is not known (yet)."""

    forecast: Forecast
    after: int  # finished iterations when it was made
    tokens: float | None = None
    seconds: float | None = None
    memory_gib: float | None = None

    def pairs(self) -> dict[str, tuple[Range, float]]:
        """By what was forecast: its range, and the truth, where both are known."""
        truths = {"tokens": self.tokens, "seconds": self.seconds, "memory_gib": self.memory_gib}
        return {
            name: (expected, truth)
            for name, truth in truths.items()
            if truth is not None and (expected := getattr(self.forecast, name)) is not None
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Made:
        return cls(**{**values, "forecast": Forecast.of_dict(values["forecast"])})


@dataclass(frozen=True, slots=True)
class Record:
    """What a run keeps of its pace and its forecasts: `forecast.json`."""

    machine: str = ""
    steps: list[Step] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    starts: float | None = None
    made: list[Made] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Record:
        steps = [Step(**step) for step in values["steps"]]
        made = [Made.of_dict(one) for one in values["made"]]
        return cls(values["machine"], steps, list(values["evaluations"]), values["starts"], made)
