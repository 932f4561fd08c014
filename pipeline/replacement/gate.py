"""What a team has gained or lost against the same team of before, on the same tasks. Pure.

A pair is a task that both teams played, with the mean score of its samples. Tasks are independent, samples of
one task are not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class Paired:
    """A team against the one of before. `lost` and `won` count tasks that one of them alone has solved."""

    before: float  # mean score
    after: float
    gain: float  # mean of the differences, after less before
    error: float  # its standard error
    lower: float  # one-sided lower bound on the gain
    lost: int
    won: int
    mcnemar_p: float  # how often chance alone splits the lost and the won at least as unevenly
    tasks: int

    @property
    def shock(self) -> float:
        """The share of the score that is lost; below 0 where something was gained."""
        return 0.0 - self.gain / self.before if self.before else 0.0

    @property
    def net_regression(self) -> int:
        """How many more tasks were lost than won; S10."""
        return self.lost - self.won

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shock": self.shock}


def paired(
    before: Mapping[str, float], after: Mapping[str, float], *, confidence: float, solved_at: float = 1.0
) -> Paired:
    """Compare scores of tasks that both teams have played.

    Args:
        before, after: the score of each task, by its id.
        confidence: of the lower bound.
        solved_at: the score from which a task is solved.

    Raises:
        UsageError: the teams played other tasks, or fewer than two.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise UsageError(f"the two teams played other tasks, such as {odd[0]!r}; they can't be compared")
    if len(before) < 2:
        raise UsageError(
            f"a paired bound needs at least 2 tasks, and {len(before)} was played; raise evaluate.tasks"
        )
    differences = [after[task] - before[task] for task in sorted(before)]
    gain = math.fsum(differences) / len(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    lost = sum(before[task] >= solved_at > after[task] for task in before)
    won = sum(after[task] >= solved_at > before[task] for task in before)
    return Paired(
        before=math.fsum(before.values()) / len(before),
        after=math.fsum(after.values()) / len(after),
        gain=gain,
        error=error,
        lower=gain - _students_t(len(differences) - 1, confidence) * error,
        lost=lost,
        won=won,
        mcnemar_p=mcnemar_p(lost, won),
        tasks=len(before),
    )


def mcnemar_p(lost: int, won: int) -> float:
    """The exact two-sided p of McNemar's test (Psychometrika 12, 1947): 1 where nothing changed sides."""
    many, few = lost + won, min(lost, won)
    tail = math.fsum(math.comb(many, k) for k in range(few + 1)) / 2**many
    return min(1.0, 2 * tail)


def passes(found: Paired, eps: float) -> bool:
    """Whether the team may stay: the lower bound of its gain is above -eps."""
    return found.lower > -eps


def scores_of(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float]:
    """The mean score of each task, from rows of `EVALUATION`; a failed episode counts as 0."""
    by_task: dict[str, list[float]] = {}
    for row in rows:
        values = {value["name"]: value["value"] for value in row["values"]}
        by_task.setdefault(row["task_id"], []).append(values.get(metric) or 0.0)
    return {task: math.fsum(values) / len(values) for task, values in by_task.items()}


def _students_t(freedom: int, confidence: float) -> float:
    from scipy.stats import t

    return float(t.ppf(confidence, freedom))
