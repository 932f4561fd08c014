"""Marginal improvement: what each round of a loop added to a value that is measured once a round."""

from __future__ import annotations

from collections.abc import Mapping


def gains(values: Mapping[int, float], first: float = 0.0) -> dict[int, float]:
    """For each round that has a value: that value minus the one of the last round before that has one.

    The first round is compared with `first`. So the gains of an episode add up to its last value minus
    `first`, whichever rounds are missing.
    """
    added, before = {}, first
    for round in sorted(values):
        added[round] = values[round] - before
        before = values[round]
    return added


def next_gain(values: Mapping[int, float], round: int) -> float:
    """What the round right after `round` added to it; 0 where either of the two has no value."""
    if round in values and round + 1 in values:
        return values[round + 1] - values[round]
    return 0.0
