"""How good stops were: regret, early and late ones, calibration, the curve of score against cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewards.stopping.rules import Ruled, features, repeated, ridge
from rewards.stopping.traces import Bools, Ints, Traces, expected, survival

BINS = 5


def measures(traces: Traces, price: float) -> dict[str, float]:
    """What the policy's stops are worth on full traces, against every other stop on the same ones.

    `regret` is max_j u_j - u of the stop, on average over the policy's chance; `early_share` and `late_share`
    are the chances of a stop before the first best point, and after the last one. `score_when_chosen` is the
    mean score of stops that the policy chose, `calibration_error` how far p(stop) is from it (`calibration`).
    `area` is that under the curve of fixed points, `probability` the mean of p(stop) where the policy is
    asked.
    """
    utility, chance, inside = traces.utility(price), traces.chance, traces.inside
    most = np.where(inside, utility, -np.inf).max(axis=1)
    best = inside & (utility >= most[:, None] - 1e-12)
    places = np.arange(utility.shape[1])[None]
    first, last = best.argmax(axis=1)[:, None], (best * places).max(axis=1)[:, None]
    asked = traces.learned & inside & (places < traces.last[:, None])
    out = {
        "utility": float(expected(chance, utility).mean()),
        "score": float(expected(chance, np.where(inside, traces.score, 0.0)).mean()),
        "cost": float(expected(chance, np.where(inside, traces.cost, 0.0)).mean()),
        "regret": float((most - expected(chance, utility)).mean()),
        "early_share": float(expected(chance, (places < first).astype(np.float64)).mean()),
        "late_share": float(expected(chance, (places > last).astype(np.float64)).mean()),
        "area": area(traces),
    }
    if asked.any():
        out["probability"] = float(traces.stop[asked].mean())
    bins = calibration(traces)
    if mass := sum(b.mass for b in bins):
        out["calibration_error"] = sum(b.mass * abs(b.claim - b.score) for b in bins) / mass
    chosen = survival(chance) * np.where(asked, chance, 0.0)
    if (mass := float(chosen.sum())) > 0:
        out["score_when_chosen"] = float((chosen * traces.score)[asked].sum()) / mass
    return out


@dataclass(frozen=True, slots=True)
class Bin:
    """Decisions with a p(stop) of one range: how many the policy comes to, what it claims, and the truth."""

    mass: float  # decisions that are come to, a trace
    claim: float  # mean p(stop)
    score: float  # mean score of a stop there: p(correct | stop) where scores are 0 or 1


def calibration(traces: Traces) -> list[Bin]:
    """What stops score by how sure the policy is of them, in `BINS` equal ranges of p(stop)."""
    asked = traces.learned & traces.inside
    asked[np.arange(len(traces)), traces.last] = False
    mass = survival(traces.chance)[asked]
    claim, score = traces.stop[asked], traces.score[asked]
    number = np.minimum((claim * BINS).astype(np.int64), BINS - 1)
    bins = []
    for each in range(BINS):
        weights = np.where(number == each, mass, 0.0)
        if (total := float(weights.sum())) > 0:
            means = (float(weights @ values) / total for values in (claim, score))
            bins.append(Bin(total / len(traces), *means))
    return bins


def area(traces: Traces) -> float:
    """The area under score against cost of fixed points, divided by the range of costs: a mean score over all
    budgets. The score itself where all points cost the same."""
    rows = np.arange(len(traces))
    points = [np.minimum(point, traces.last) for point in range(traces.score.shape[1])]
    score = np.array([traces.score[rows, stops].mean() for stops in points])
    cost = np.array([traces.cost[rows, stops].mean() for stops in points])
    width = cost[-1] - cost[0]
    return float(np.trapezoid(score, cost) / width) if width > 0 else float(score.mean())


def best_fixed(rules: Sequence[Ruled]) -> Ruled:
    """The fixed point of highest utility; of equal ones the earliest."""
    return max((rule for rule in rules if rule.rule == "fixed"), key=lambda rule: rule.utility)


def returned(traces: Traces, stops: Ints) -> Mapping[str, float]:
    """The mean score of the answer that is returned, by which of the answers until the stop it is: the last,
    the first, the most frequent, the one of the surest point, or the one that a regression on features of the
    points expects most of (fitted on the other half of the traces)."""
    rows = np.arange(len(traces))
    seen = np.arange(traces.score.shape[1])[None] <= stops[:, None]
    choices = {
        "last": stops,
        "first": np.zeros_like(stops),
        "majority": _majority(traces.answer, stops),
        "surest": np.where(seen & traces.learned, traces.stop, -1.0).argmax(axis=1),
        "head": _by_head(traces, seen),
    }
    return {name: float(traces.score[rows, choice].mean()) for name, choice in choices.items()}


def _majority(answer: Ints, stops: Ints) -> Ints:
    """The last point until the stop with the most frequent answer; of equally frequent ones the latest."""
    out = stops.copy()
    for row, stop in enumerate(stops):
        said = answer[row, : stop + 1]
        counts = np.array([(said == one).sum() if one >= 0 else 0 for one in said])
        if counts.any():
            out[row] = len(said) - 1 - int(counts[::-1].argmax())
    return out


def _by_head(traces: Traces, seen: Bools) -> Ints:
    known = np.concatenate(
        [features(traces), repeated(traces.answer, min(3, traces.answer.shape[1])).astype(float)[..., None]],
        axis=-1,
    )
    guess = np.full(traces.score.shape, -np.inf)
    half = np.arange(len(traces)) % 2
    for number in (0, 1):
        train, held = half != number, half == number
        inside = traces.inside[train]
        if train.any() and inside.any():
            fit = ridge(known[train][inside], traces.score[train][inside])
            guess[held] = fit(known[held])
        else:
            guess[held] = 0.0
    return np.where(seen, guess, -np.inf).argmax(axis=1)
