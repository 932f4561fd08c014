"""Traces of stop decisions as rectangles of numbers, and what a stop policy is worth on them.

Legend: T traces, B decision points of the longest one. Point j of a trace is a moment at which the episode
may end; at its last one it ends in any case. Stopping ends the world and does not alter it, so on one trace
that went on to its end the utility of every stop can be seen: the value of any stop policy on the trace, and
its gradient, are sums and not samples, as long as nothing that is said about stopping enters a context.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traces:
    """Decision points of T traces; entries beyond a trace's last point hold anything.

    `last` is where each trace ends, (T,). Other arrays are (T, B): `score` of an answer at each point,
    `cost` spent until then, `stop` the policy's probability of stopping there. `learned` says where the
    policy was asked; elsewhere the course went on (or, at `last`, ended) by itself. `agreement` is the share
    of the branches that say the same, NaN where nobody compared; `answer` numbers answers, equal ones alike,
    -1 for none.
    """

    last: Ints
    score: Floats
    cost: Floats
    stop: Floats
    learned: Bools
    agreement: Floats
    answer: Ints

    def __len__(self) -> int:
        return len(self.last)

    @property
    def inside(self) -> Bools:
        """Where there are decision points, (T, B)."""
        inside: Bools = np.arange(self.score.shape[1])[None] <= self.last[:, None]
        return inside

    @property
    def chance(self) -> Floats:
        """The probability of a stop at each point, (T, B): 1 at the end, 0 where the policy is not asked."""
        chance = np.where(self.learned & self.inside, self.stop, 0.0)
        chance[np.arange(len(self)), self.last] = 1.0
        return chance

    def utility(self, price: float) -> Floats:
        """Score minus `price` times cost, (T, B); 0 beyond the end."""
        return np.where(self.inside, self.score - price * self.cost, 0.0)

    def take(self, rows: Any) -> Traces:
        return Traces(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def survival(chance: Floats) -> Floats:
    """The probability that a trace comes to each point, (T, B): the product of 1 - p over those before."""
    before = np.concatenate([np.ones((len(chance), 1)), 1 - chance[:, :-1]], axis=1)
    alive: Floats = np.cumprod(before, axis=1)
    return alive


def continue_values(chance: Floats, utility: Floats) -> Floats:
    """What going on at each point is worth: C_j = p_{j+1} u_{j+1} + (1 - p_{j+1}) C_{j+1}, (T, B).

    0 at the last column, where nothing comes after.
    """
    value = np.zeros_like(utility)
    ahead = np.zeros(len(utility))
    for point in range(utility.shape[1] - 1, 0, -1):
        ahead = chance[:, point] * utility[:, point] + (1 - chance[:, point]) * ahead
        value[:, point - 1] = ahead
    return value


def expected(chance: Floats, values: Floats) -> Floats:
    """The sum over points of S_j p_j times `values`, (T,): what the policy gets of them."""
    total: Floats = (survival(chance) * chance * values).sum(axis=1)
    return total


def logit_gradient(chance: Floats, utility: Floats) -> Floats:
    """The derivative of `expected` utility by the logit of each stop, (T, B): S_j p_j (1 - p_j) (u_j - C_j).

    0 where the chance is 0 or 1: a stop that nobody chose has no gradient.
    """
    advantage = utility - continue_values(chance, utility)
    gradient: Floats = survival(chance) * chance * (1 - chance) * advantage
    return gradient
