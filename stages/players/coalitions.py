"""Which sets of the inputs of a reply are played, and what each of them counts in the inputs' Shapley values.

With v(S) the return of the episode where the reply gets the inputs S and a placeholder for the others, the
value of input i is the mean over all orders of the inputs of v(those before i, and i) - v(those before i).
So the values add up to v(all) - v(none), whether the mean is over all orders or over some that were drawn.
Each value is a sum over sets of a weight times v; a set that several orders share is played once.

Source: Shapley (1953); drawn orders in pairs with their reverse, Mitchell et al., arXiv:2104.12199.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

Weights = dict[tuple[int, ...], list[float]]
"""By set of inputs, ascending: what its return counts in the value of each input."""


def coalitions(count: int, permutations: int, seed: int) -> Weights:
    """The sets of `count` inputs that are played, from none to all, with their weights.

    All sets, where these are no more than the sets of `permutations` orders could be; else those of orders
    that `seed` draws.
    """
    if is_exact(count, permutations):
        return _of_all_orders(count)
    weights: dict[frozenset[int], list[float]] = defaultdict(lambda: [0.0] * count)
    for order in _orders(count, permutations, random.Random(seed)):
        before = frozenset[int]()
        for each in order:
            weights[before][each] -= 1 / permutations
            before |= {each}
            weights[before][each] += 1 / permutations
    return {tuple(sorted(some)): weights[some] for some in sorted(weights, key=lambda s: (len(s), sorted(s)))}


def is_exact(count: int, permutations: int) -> bool:
    """Whether all sets of the inputs are played: each order has `count` - 1 sets beside none and all."""
    return 2**count <= permutations * (count - 1) + 2


def _of_all_orders(count: int) -> Weights:
    weights: Weights = {}
    for size in range(count + 1):
        # the share of orders in which a set of this size, or of one less, comes right before an input
        after = 0.0 if size == count else 1 / (count * math.comb(count - 1, size))
        before = 0.0 if size == 0 else 1 / (count * math.comb(count - 1, size - 1))
        for some in combinations(range(count), size):
            weights[some] = [before if each in some else -after for each in range(count)]
    return weights


def _orders(count: int, number: int, luck: random.Random) -> Iterator[list[int]]:
    """Drawn orders, each second one the reverse of the one before."""
    order: list[int] = []
    for place in range(number):
        order = order[::-1] if place % 2 else luck.sample(range(count), count)
        yield order
