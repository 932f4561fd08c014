"""What the best of n plays is worth, where a score chooses it: from all N stored plays of a task. Pure.

The mean over all subsets of n of the N plays is exact, no subset is drawn: with plays in the order of their
scores, the play of rank i (from 0) is the best of C(i, n - 1) of the C(N, n) subsets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Protocol

DRAWS: Final = 64  # subsets that vote, where not all can be counted


@dataclass(frozen=True, slots=True)
class Ranked:
    """One stored play of a task: its score, what it is worth, and its ballot (None: it casts none)."""

    score: float
    value: float
    ballot: str | None = None


def best_of(plays: Sequence[Ranked], n: int) -> float:
    """What the play with the highest score of n is worth, on average over all subsets of n.

    Plays of equal scores are chosen from evenly.

    Raises:
        ValueError: n is not from 1 to the number of plays.
    """
    if not 1 <= n <= len(plays):
        raise ValueError(f"the best of {n} needs that many plays, got {len(plays)}")
    ordered = sorted(plays, key=lambda play: play.score)
    total, rank = 0.0, 0
    while rank < len(ordered):
        tied = [play for play in ordered[rank:] if play.score == ordered[rank].score]
        # subsets whose highest score is this one: all below its last rank, less all below its first
        subsets = math.comb(rank + len(tied), n) - math.comb(rank, n)
        total += subsets * fmean(play.value for play in tied)
        rank += len(tied)
    return total / math.comb(len(ordered), n)


def oracle(plays: Sequence[Ranked], n: int) -> float:
    """What the best of n is worth, on average over all subsets of n: what no ranker can pass."""
    return best_of([Ranked(play.value, play.value) for play in plays], n)


def majority_of(plays: Sequence[Ranked], n: int, seed: str = "") -> float | None:
    """What the majority of n ballots is worth, on average over subsets of n; None where nobody casts one.

    Ballots that tie are drawn from evenly; a subset without a ballot is worth 0. Above `DRAWS` subsets, as
    many are drawn by the seed.
    """
    if all(play.ballot is None for play in plays):
        return None
    if n == len(plays):
        return majority(plays)
    rng = random.Random(f"{seed}/{n}")
    return fmean(majority(rng.sample(list(plays), n)) for _ in range(DRAWS))


class Voter(Protocol):
    """Something that casts a ballot, None where it casts none, and is worth something."""

    @property
    def ballot(self) -> str | None: ...

    @property
    def value(self) -> float: ...


def majority(voters: Sequence[Voter]) -> float:
    """What those with the most frequent ballot are worth. Ballots that tie are drawn from evenly; 0 without
    any."""
    by_ballot: dict[str, list[float]] = {}
    for voter in voters:
        if voter.ballot is not None:
            by_ballot.setdefault(voter.ballot, []).append(voter.value)
    if not by_ballot:
        return 0.0
    most = max(map(len, by_ballot.values()))
    return fmean(fmean(values) for values in by_ballot.values() if len(values) == most)
