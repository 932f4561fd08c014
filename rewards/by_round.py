"""Marginal improvement: what each round of a loop added to a value that is measured once a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rewards.part import Numbers, Rows


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


@dataclass(frozen=True, slots=True)
class RoundValues:
    """`gains` of many episodes at once: values that each has by round, sorted; of two in a round the last."""

    keys: npt.NDArray[np.int64]
    values: Numbers
    gains: Numbers

    @classmethod
    def of(cls, episode: Rows, round: Rows, values: Numbers) -> RoundValues:
        """From one row for each value: its episode and round."""
        keys = _keys(episode, round)
        order = np.argsort(keys, kind="stable")
        order = order[np.append(np.diff(keys[order]) > 0, True)[: len(order)]]
        ordered = values[order]
        first = np.diff(episode[order], prepend=-1) > 0
        before = np.where(first, 0.0, np.roll(ordered, 1))
        return cls(keys[order], ordered, ordered - before)

    def at(self, episode: Rows, round: Rows) -> Numbers:
        """The value of each of these rounds, 0 where there is none."""
        return self._found(self.values, episode, round)

    def gain_at(self, episode: Rows, round: Rows) -> Numbers:
        """What each of these rounds added to the last before it that has a value, 0 where it has none."""
        return self._found(self.gains, episode, round)

    def _found(self, what: Numbers, episode: Rows, round: Rows) -> Numbers:
        if not len(self.keys):
            return np.zeros(len(episode))
        wanted = _keys(episode, round)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, what[place], 0.0)


def _keys(episode: Rows, round: Rows) -> npt.NDArray[np.int64]:
    """One number for each episode and round, in their order: rounds have 32 bits."""
    return episode.astype(np.int64) * 2**33 + round
