"""Rules of stopping that nobody trained, on stored traces: what a learned stop is held against.

A rule says at which decision point each trace stops, (T,). All see the same traces, so differences between
rules are paired: what differs is where they stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rewards.stopping.traces import Bools, Floats, Ints, Traces, expected

MOST_PATIENCE = 4
FOLDS = 2


@dataclass(frozen=True, slots=True)
class Ruled:
    """Where a rule stops, or what the policy does on average: means over traces."""

    rule: str
    setting: float | None  # the point of `fixed`, the number of equal answers of `patience`
    score: float
    cost: float
    utility: float
    point: float  # the decision point of the stop


def ruled(traces: Traces, price: float) -> list[Ruled]:
    """Every rule on the same traces, then the learned policy and what hindsight would choose.

    `fixed` stops at one point in all traces; `budget` is the last of them. `unanimity` stops where all
    branches agree, `patience` n where an answer came n times in a row; either ends with the trace.
    `regression` stops where the utility that it predicts is not below what it predicts of going on
    (`regressed`).
    """
    rows = [_ruled(name, setting, stops, traces, price) for name, setting, stops in _rules(traces, price)]
    utility = traces.utility(price)
    chance = traces.chance
    points = np.broadcast_to(np.arange(chance.shape[1], dtype=np.float64), chance.shape)
    means = (expected(chance, np.where(traces.inside, v, 0.0)).mean() for v in
             (traces.score, traces.cost, utility, points))  # fmt: skip
    rows.append(Ruled("policy", None, *(float(value) for value in means)))
    best = np.where(traces.inside, utility, -np.inf).argmax(axis=1)
    return [*rows, _ruled("hindsight", None, best, traces, price)]


def _rules(traces: Traces, price: float) -> Iterator[tuple[str, float | None, Ints]]:
    longest = traces.score.shape[1]
    for point in range(longest):
        yield "fixed", float(point), np.minimum(point, traces.last)
    yield "budget", None, traces.last
    if np.isfinite(traces.agreement[traces.inside]).any():
        yield "unanimity", None, first_where(traces.agreement >= 1, traces)
    if (traces.answer[traces.inside] >= 0).any():
        for count in range(2, min(MOST_PATIENCE, longest) + 1):
            yield "patience", float(count), first_where(repeated(traces.answer, count), traces)
    if len(traces) >= 2 * FOLDS:
        yield "regression", None, regressed(traces, price)


def _ruled(rule: str, setting: float | None, stops: Ints, traces: Traces, price: float) -> Ruled:
    rows = np.arange(len(traces))
    at = (rows, stops)
    score, cost = float(traces.score[at].mean()), float(traces.cost[at].mean())
    return Ruled(rule, setting, score, cost, score - price * cost, float(stops.mean()))


def first_where(holds: Bools, traces: Traces) -> Ints:
    """The first decision point of each trace where something holds, (T,); its end where nothing does."""
    holds = holds & traces.inside
    stops: Ints = np.where(holds.any(axis=1), holds.argmax(axis=1), traces.last)
    return stops


def repeated(answer: Ints, count: int) -> Bools:
    """Where the last `count` answers are one, (T, B)."""
    holds = np.zeros(answer.shape, dtype=np.bool_)
    holds[:, count - 1 :] = answer[:, count - 1 :] >= 0
    for back in range(1, count):
        same = answer[:, count - 1 :] == answer[:, count - 1 - back : answer.shape[1] - back]
        holds[:, count - 1 :] &= same
    return holds


def features(traces: Traces) -> Floats:
    """What a rule may see at each point, (T, B, F): 1, the place, the cost, agreement, repetitions, whether
    the last answer is as the one before it, and the policy's own logit."""
    number = np.broadcast_to(np.arange(traces.score.shape[1], dtype=np.float64), traces.score.shape)
    spread = max(float(traces.cost[traces.inside].max()), 1e-9)
    agreement = np.nan_to_num(traces.agreement, nan=0.0)
    stop = np.clip(np.where(traces.learned, traces.stop, 0.5), 1e-6, 1 - 1e-6)
    columns = (
        np.ones_like(number),
        number / max(traces.score.shape[1] - 1, 1),
        traces.cost / spread,
        agreement,
        repeated(traces.answer, 2).astype(np.float64),
        np.log(stop) - np.log1p(-stop),
    )
    return np.where(traces.inside[..., None], np.stack(columns, axis=-1), 0.0)


def ridge(seen: Floats, target: Floats, penalty: float = 1e-2) -> Callable[[Floats], Floats]:
    """A linear fit of (N,) targets on (N, F) features: a function of features."""
    gram = seen.T @ seen + penalty * len(seen) * np.eye(seen.shape[1]) / max(len(seen), 1)
    weights = np.linalg.solve(gram, seen.T @ target)
    return lambda new: new @ weights


def regressed(traces: Traces, price: float) -> Ints:
    """Where least squares would stop, (T,): each half of the traces is judged by fits on the other half.

    From the last point back, what going on is worth is fitted on features of the point, and the rule stops
    where the utility that is predicted is not below it. Source: least squares Monte Carlo, Longstaff and
    Schwartz (2001), doi:10.1093/rfs/14.1.113.
    """
    stops = np.zeros(len(traces), dtype=np.int64)
    fold = np.arange(len(traces)) % FOLDS
    for number in range(FOLDS):
        stops[fold == number] = _stops(traces.take(fold != number), traces.take(fold == number), price)
    return stops


def _stops(train: Traces, held: Traces, price: float) -> Ints:
    utility, seen, new = train.utility(price), features(train), features(held)
    rows = np.arange(len(train))
    ahead = utility[rows, train.last]  # what is realised from each point on
    decision = np.zeros(held.score.shape, dtype=np.bool_)
    for point in range(train.score.shape[1] - 2, -1, -1):
        goes_on = point < train.last
        if not goes_on.any():
            continue
        now = ridge(seen[goes_on, point], utility[goes_on, point])
        later = ridge(seen[goes_on, point], ahead[goes_on])
        decision[:, point] = now(new[:, point]) >= later(new[:, point])
        stops = goes_on & (now(seen[:, point]) >= later(seen[:, point]))
        ahead = np.where(stops, utility[:, point], ahead)
    return first_where(decision, held)
