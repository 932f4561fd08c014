"""Which differences are told from noise: paired over tasks and seeds, and corrected for their number.

**Interval.** Hierarchical bootstrap: seeds are drawn with replacement, and tasks with replacement within the
draw, the same tasks for all seeds, because all seeds are tested on the same tasks. Few seeds vary too little
when they are drawn from themselves: the part of a draw that is due to seeds is stretched by √(S / (S - 1)),
and all of it by Student's t over the normal quantile, with as many degrees of freedom as the seeds' and the
tasks' shares of the variance give (Satterthwaite, Biometrics Bulletin 2, 1946).

**Chance.** The share of draws, centred on no difference, that are at least as far from it as what was seen.

**Correction.** Holm's step-down (Scand. J. Stat. 6, 1979): the chance of one false claim in a whole family is
at most 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.evaluate import CONFIDENCE, estimate_score, students_t

DRAWS: Final = 20000  # so that a chance survives a correction for a hundred differences
LEVEL: Final = 1 - CONFIDENCE
_NORMAL: Final = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
BySeed = Mapping[int, Mapping[str, float]]
"""Numbers by seed and task."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A mean over seeds and tasks, its 95 % interval, and the chance of it where there is no difference."""

    mean: float
    low: float | None  # None: one seed and one task, of which nothing can be said
    high: float | None
    chance: float | None
    seeds: int
    tasks: int


def effect_of(values: BySeed, draws: int = DRAWS) -> Effect:
    """The mean of paired differences with its interval.

    Tasks that not all seeds have are left out of all of them.

    Args:
        draws: of the bootstrap.

    Raises:
        ValueError: no seed, or no task that all seeds have.
    """
    matrix = _matrix(values)
    seeds, tasks = matrix.shape
    mean = float(matrix.mean())
    if seeds * tasks < 2:
        return Effect(mean, None, None, None, seeds, tasks)
    deviations = _deviations(matrix, draws)
    if not deviations.any():  # all equal, so no draw differs from another: the sign test over tasks
        return Effect(mean, mean, mean, min(1.0, 2.0 ** (1 - tasks)) if mean else 1.0, seeds, tasks)
    deviations = deviations * (students_t(_freedom(matrix)) / _NORMAL)
    low, high = np.quantile(deviations, [LEVEL / 2, 1 - LEVEL / 2])
    far = int((np.abs(deviations) >= abs(mean)).sum())
    low, high = mean + float(low), mean + float(high)
    if np.abs(matrix).max() <= 1:  # differences of shares
        low, high = max(-1.0, low), min(1.0, high)
    return Effect(mean, low, high, (far + 1) / (draws + 1), seeds, tasks)


def score_of(values: BySeed, draws: int = DRAWS) -> Effect:
    """The mean of scores with its interval, which stays from 0 to 1 where all scores do.

    Equal scores have the interval of as many tasks (`estimate_score`): all right may be luck.
    """
    effect = effect_of(values, draws)
    matrix = _matrix(values)
    if effect.low is None or effect.high is None or matrix.min() < 0 or matrix.max() > 1:
        return effect
    low, high = max(0.0, effect.low), min(1.0, effect.high)
    if low == high:
        plain = estimate_score([float(value) for value in matrix.mean(axis=0)])
        low, high = (low, high) if plain.low is None or plain.high is None else (plain.low, plain.high)
    return replace(effect, low=low, high=high, chance=None)


def difference(one: BySeed, other: BySeed) -> dict[int, dict[str, float]]:
    """`one` minus `other`, for the seeds and tasks that both have."""
    return {
        seed: {task: value - other[seed][task] for task, value in one[seed].items() if task in other[seed]}
        for seed in one
        if seed in other
    }


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Chances corrected for their number, in the same order; None stays None and is not counted."""
    known = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    corrected: list[float | None] = [None] * len(chances)
    most = 0.0
    for rank, (chance, place) in enumerate(known):
        most = max(most, min(1.0, chance * (len(known) - rank)))
        corrected[place] = most
    return corrected


def _matrix(values: BySeed) -> npt.NDArray[np.float64]:
    """[seeds, tasks]."""
    seeds = sorted(values)
    shared = sorted(set.intersection(*(set(values[seed]) for seed in seeds))) if seeds else []
    if not shared:
        raise ValueError("an effect needs at least one task that all seeds have")
    return np.array([[values[seed][task] for task in shared] for seed in seeds], np.float64)


def _deviations(matrix: npt.NDArray[np.float64], draws: int) -> npt.NDArray[np.float64]:
    """How far the mean of each draw is from that of the whole: the seeds' part, stretched, and the tasks'."""
    seeds, tasks = matrix.shape
    random = np.random.default_rng(20260)
    of_seeds = random.multinomial(seeds, [1 / seeds] * seeds, draws) / seeds  # weights [draws, seeds]
    of_tasks = random.multinomial(tasks, [1 / tasks] * tasks, draws) / tasks
    by_seed = of_seeds @ (matrix.mean(axis=1) - matrix.mean())
    stretch = np.sqrt(seeds / (seeds - 1)) if seeds > 1 else 1.0
    # what is left of a draw once its seeds' own means are taken away
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    by_task = np.einsum("ds,st,dt->d", of_seeds, centred, of_tasks)
    return by_seed * stretch + by_task * (np.sqrt(tasks / (tasks - 1)) if tasks > 1 else 1.0)


def _freedom(matrix: npt.NDArray[np.float64]) -> float:
    """Degrees of freedom of the mean, by the shares of its variance that seeds and tasks have."""
    seeds, tasks = matrix.shape
    of_tasks = float(matrix.mean(axis=0).var(ddof=1)) / tasks if tasks > 1 else 0.0
    of_seeds = float(matrix.mean(axis=1).var(ddof=1)) / seeds if seeds > 1 else 0.0
    total = of_seeds + of_tasks
    if total == 0:
        return float(seeds * tasks - 1)
    parts = (of_seeds**2 / max(seeds - 1, 1)) + (of_tasks**2 / max(tasks - 1, 1))
    return max(1.0, total**2 / parts)
