"""How well scores put pairs of plays in order: accuracy, loss, margin, calibration. Pure.

Pairs of one task are not independent, tasks are: every interval is of a bootstrap over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rewards.preferences.pairs import Pair

DRAWS: Final = 2000  # of a bootstrap
BINS: Final = 10  # of the calibration
_Z: Final = 1.96  # of an interval of 95 %
_SEED: Final = 20_261_201
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """A mean over pairs and its 95 % interval over tasks; no interval of fewer than two tasks."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{interval}"


@dataclass(frozen=True, slots=True)
class Ranking:
    """How scores rank pairs whose order is known. A tie of scores counts as half right."""

    pairs: int
    tasks: int
    accuracy: Share
    loss: float  # mean of -log σ(score of the winner - score of the loser), in nats
    margin: float  # mean difference of the scores, winner minus loser
    calibration: float  # expected calibration error of σ(difference), from 0 to 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ranking_of(pairs: Sequence[Pair], scores: Mapping[str, float]) -> Ranking:
    """Measure scores by pairs.

    Args:
        pairs: one or more.
        scores: of every play in them, by its id.
    """
    differences = _differences(pairs, scores)
    return Ranking(
        pairs=len(pairs),
        tasks=len({pair.task for pair in pairs}),
        accuracy=over_tasks([pair.task for pair in pairs], _right(differences), share=True),
        loss=float(np.logaddexp(0.0, -differences).mean()),
        margin=float(differences.mean()),
        calibration=calibration_error(differences),
    )


def over_tasks(tasks: Sequence[str], values: Numbers, *, share: bool = False) -> Share:
    """The mean of values and its bootstrap interval at 95 %, whole tasks drawn; the same for equal input.

    Of a share that is 0 or 1 in every task, which a bootstrap can't doubt, the interval is Wilson's (J. Am.
    Stat. Assoc. 22, 1927).
    """
    names = {task: place for place, task in enumerate(sorted(set(tasks)))}
    places = np.array([names[task] for task in tasks])
    sums, counts = np.bincount(places, weights=values), np.bincount(places)
    mean = float(sums.sum() / counts.sum())
    if len(names) < 2:
        return Share(mean, None, None)
    if share and mean in (0.0, 1.0):
        doubt = _Z**2 / (len(names) + _Z**2)
        return Share(mean, 1 - doubt, 1.0) if mean else Share(mean, 0.0, doubt)
    chance = np.full(len(names), 1 / len(names))
    drawn = np.random.default_rng(_SEED).multinomial(len(names), chance, size=DRAWS)  # [draws, tasks]
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return Share(mean, float(low), float(high))


def gain_of(pairs: Sequence[Pair], scores: Mapping[str, float], others: Mapping[str, float]) -> Share:
    """By how much the accuracy of scores is above that of others, on the same pairs."""
    right = _right(_differences(pairs, scores)) - _right(_differences(pairs, others))
    return over_tasks([pair.task for pair in pairs], right)


def calibration_error(differences: Numbers) -> float:
    """How far σ(|difference|), the chance that the higher score wins, is from how often it does.

    Mean over `BINS` bins of equal width from 0.5 to 1, each with its share of the pairs (expected calibration
    error, arXiv:1706.04599).
    """
    chances = 1 / (1 + np.exp(-np.abs(differences)))
    places = np.minimum(((chances - 0.5) * 2 * BINS).astype(int), BINS - 1)
    right = _right(differences)
    gaps = np.bincount(places, weights=right - chances, minlength=BINS)
    return float(np.abs(gaps).sum() / len(differences))


Feature = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Trivial:
    """A ranker that looks at one number of a play: its sign is chosen on the pairs that train."""

    name: str
    sign: int  # 1: more is better
    accuracy: Share  # on held-out pairs


def trivial_ranker(
    name: str, feature: Mapping[str, float], train: Sequence[Pair], held_out: Sequence[Pair]
) -> tuple[Trivial, dict[str, float]]:
    """A ranker by one feature, as good as its direction lets it be, and its scores by play."""
    right = float(_right(_differences(train, feature)).mean()) if train else 0.5
    sign = 1 if right >= 0.5 else -1
    scores = {play: sign * value for play, value in feature.items()}
    return Trivial(name, sign, ranking_of(held_out, scores).accuracy), scores


def _differences(pairs: Sequence[Pair], scores: Mapping[str, float]) -> Numbers:
    return np.array([scores[pair.winner] - scores[pair.loser] for pair in pairs], dtype=np.float64)


def _right(differences: Numbers) -> Numbers:
    right: Numbers = (differences > 0) + 0.5 * (differences == 0)
    return right
