"""Who works on which piece of an episode: its branches, what decided them, how they stand to each other."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rewards.answers import kept_format
from rewards.grading import qa
from workflows.dag import Dag
from workflows.vocabulary import Act, Event, Status

Turn = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Branch:
    """The turns of one piece of work: of one spawned member, or of one branch of the workflow's own.

    `turns` are positions in the episode, ascending; `result` is the last of them that a role spoke.
    """

    name: str
    turns: tuple[int, ...]
    result: int


def branches_of(turns: Sequence[Turn], branch_steps: Sequence[str]) -> list[Branch]:
    """The branches of an episode, in the order of their first turns.

    A spawned member (column `instance`) is a branch. In an episode that spawns nobody, the turns of the
    workflow's `branch_steps` are, one branch for each step and branch of theirs.
    """
    of_branch: dict[str, list[int]] = {}
    spawns = any(turn.get("instance") is not None for turn in turns)
    for place, turn in enumerate(turns):
        if spawns:
            if turn["instance"] is not None and turn["event"] != Event.CONTROL:
                of_branch.setdefault(str(turn["instance"]), []).append(place)
        elif turn["step"] in branch_steps:
            of_branch.setdefault(f"{turn['step']}/{turn['branch']}", []).append(place)
    branches = []
    for name, places in of_branch.items():
        spoken = [place for place in places if turns[place]["event"] == Event.LLM]
        if spoken:
            branches.append(Branch(name, tuple(places), spoken[-1]))
    return branches


def deciders_of(turns: Sequence[Turn], branches: Sequence[Branch]) -> tuple[int, ...]:
    """The positions of the replies that decided how the work is split.

    These are the turns that spawns name as `decided_by`; without spawns, the replies that the first turns of
    branches read. Where branches read nothing, nobody decided: the workflow's code did.
    """
    places = {turn["turn_index"]: place for place, turn in enumerate(turns)}
    spawned = [
        t["decided_by"] for t in turns if t.get("act") == Act.SPAWN and t.get("decided_by") is not None
    ]
    indices = spawned or [i for branch in branches for i in turns[branch.turns[0]]["parents"] or ()]
    inside = {place for branch in branches for place in branch.turns}
    found = {places[index] for index in indices if index in places}
    return tuple(sorted(p for p in found if p not in inside and turns[p]["event"] == Event.LLM))


def independence(branches: Sequence[Branch], dag: Dag) -> float:
    """1 minus the share of pairs of branches of which one has read the other; 1 for fewer than two."""
    pairs = list(combinations(branches, 2))
    if not pairs:
        return 1.0
    seen = {b.name: frozenset[int]().union(*(dag.ancestors(p) for p in b.turns)) for b in branches}
    tied = sum(bool(seen[a.name] & set(b.turns) or seen[b.name] & set(a.turns)) for a, b in pairs)
    return 1 - tied / len(pairs)


def completion(turns: Sequence[Turn], branches: Sequence[Branch]) -> float:
    """The share of branches whose last reply is whole and keeps its format."""
    results = [turns[branch.result] for branch in branches]
    return sum(t["status"] == Status.OK and kept_format(t) for t in results) / len(branches)


def overlap(turns: Sequence[Turn], branches: Sequence[Branch]) -> float:
    """Mean Jaccard similarity of the words of two branches' results, over all pairs; 0 for fewer than two.

    Two results without a word are alike.
    """
    words = [_words(turns[branch.result]["response_text"] or "") for branch in branches]
    pairs = list(combinations(words, 2))
    if not pairs:
        return 0.0
    return sum(len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs) / len(pairs)


def unused(branches: Sequence[Branch], dag: Dag) -> float:
    """The share of branches whose result no turn outside of them has read."""
    inside = {branch.name: set(branch.turns) for branch in branches}
    read = {
        branch.name
        for branch in branches
        for node in range(len(dag.parents))
        if node not in inside[branch.name] and branch.result in dag.ancestors(node)
    }
    return 1 - len(read) / len(branches)


@functools.lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(qa.normalised(text))
