"""Pairs of plays of one task of which one earned more, and which tasks are held out. Pure.

Every pair of two plays of a task is either kept or counted with the reason why not; the same plays give the
same pairs in whatever order they come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from workflows.errors import UsageError
from workflows.trajectory import seed_for

TIE: Final = "returns differ by less than the margin"
BEYOND_LIMIT: Final = "beyond the limit of pairs of a task"
ONE_PLAY: Final = "one play only"
ONE_OUTCOME: Final = "all plays earned the same, within the margin"

_ROUNDING: Final = 1e-12  # of a difference of two returns


@dataclass(frozen=True, slots=True)
class Play:
    """One play of a task, by its id, and what it earned."""

    episode_id: str
    task: str
    value: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two plays of a task, of which the winner earned more."""

    task: str
    winner: str
    loser: str
    gap: float  # of what they earned; above 0


@dataclass(slots=True)
class Pairs:
    """Pairs in the order of tasks and plays, and what became of all that could be."""

    pairs: list[Pair]
    possible: int = 0  # pairs of two plays of one task
    excluded: Counter[str] = field(default_factory=Counter)  # pairs, by reason
    tasks: int = 0
    tasks_excluded: Counter[str] = field(default_factory=Counter)  # tasks without any pair, by reason


def pairs_of(plays: Iterable[Play], *, margin: float = 0.0, most: int = 64, seed: int = 0) -> Pairs:
    """All pairs of plays of one task whose returns differ by at least a margin, at most so many a task.

    Args:
        plays: of any tasks; each has an id of its own.
        margin: the least difference; equal returns are a tie at any margin.
        most: pairs of one task that are kept, drawn by the seed.
        seed: of the draw.

    Raises:
        UsageError: a negative margin, or no pair may be kept.
    """
    if not (margin >= 0 and math.isfinite(margin)) or most < 1:
        raise UsageError(
            f"pairs need a margin of 0 or more and a limit of 1 or more, got {margin} and {most}"
        )
    by_task: dict[str, list[Play]] = {}
    for play in plays:
        by_task.setdefault(play.task, []).append(play)
    result = Pairs([], tasks=len(by_task))
    for task in sorted(by_task):
        of_task = sorted(by_task[task], key=lambda play: play.episode_id)
        result.possible += math.comb(len(of_task), 2)
        apart = [pair for one, other in combinations(of_task, 2) if (pair := _pair(one, other, margin))]
        result.excluded[TIE] += math.comb(len(of_task), 2) - len(apart)
        if not apart:
            result.tasks_excluded[ONE_PLAY if len(of_task) < 2 else ONE_OUTCOME] += 1
        if len(apart) > most:
            apart.sort(key=lambda pair: (seed_for(seed, "pair", pair.winner, pair.loser), pair.winner))
            result.excluded[BEYOND_LIMIT] += len(apart) - most
            apart = sorted(apart[:most], key=lambda pair: (pair.winner, pair.loser))
        result.pairs += apart
    result.excluded = +result.excluded
    return result


def held_out_tasks(tasks: Iterable[str], share: float, seed: int = 0) -> frozenset[str]:
    """The tasks that train nothing: about a share of them, chosen by the seed and each task's own name.

    Whether a task is held out does not depend on which others there are, except that of two or more tasks at
    least one is on either side.

    Raises:
        UsageError: the share leaves nothing on one side.
    """
    if not 0 < share < 1:
        raise UsageError(f"the share of held-out tasks is between 0 and 1, got {share}")
    drawn = {task: seed_for(seed, "held out", task) / 2**63 for task in tasks}
    held_out = {task for task, place in drawn.items() if place < share}
    order = sorted(drawn, key=lambda task: (drawn[task], task))
    if len(order) > 1 and len(held_out) in (0, len(order)):
        held_out = set(order[:1]) if not held_out else set(order[:-1])
    return frozenset(held_out)


def steps_of(pairs: Sequence[Pair], pairs_per_step: int, seed: int) -> list[list[str]]:
    """Tasks in the optimizer steps of one pass: whole tasks, in an order drawn by the seed, as many to a step
    as bring it to `pairs_per_step` pairs.

    Pairs of a task stay together: its plays are computed once a step, whatever number of pairs they are in
    (arXiv:2203.02155, section 3.5).
    """
    counts = Counter(pair.task for pair in pairs)
    steps: list[list[str]] = []
    filled = pairs_per_step
    for task in sorted(counts, key=lambda task: (seed_for(seed, "step", task), task)):
        if filled >= pairs_per_step:
            steps.append([])
            filled = 0
        steps[-1].append(task)
        filled += counts[task]
    return steps


def by_episode(plays: Iterable[Play]) -> Mapping[str, Play]:
    """Plays by their ids."""
    return {play.episode_id: play for play in plays}


def _pair(one: Play, other: Play, margin: float) -> Pair | None:
    gap = one.value - other.value
    if not gap or abs(gap) + _ROUNDING < margin:
        return None
    winner, loser = (one, other) if gap > 0 else (other, one)
    return Pair(one.task, winner.episode_id, loser.episode_id, abs(gap))
