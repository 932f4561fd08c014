"""The turns of an episode as a graph in modelled time: work, span, width, slack and the critical path. Pure.

A node is a turn, an edge says that a turn read another one or was decided by it, and a weight is a length in
seconds by stated rates. With as many agents as there is work for, a node begins when its last parent ends.
The clock of a shared machine would say more of the machine than of the team.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from workflows.vocabulary import Event

_CLOSE: Final = 1e-9  # share of the span below which a slack is rounding


@dataclass(frozen=True)
class Dag:
    """A graph of nodes 0 to N - 1, each after its parents.

    Attributes:
        parents: for each node its parents, all of them smaller numbers.
        weights: for each node its length, 0 or more.

    Raises:
        ValueError: a parent is not an earlier node, or a weight is not a length.
    """

    parents: Sequence[Sequence[int]]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.weights):
            raise ValueError(f"{len(self.parents)} nodes have {len(self.weights)} weights; give one for each")
        for node, parents in enumerate(self.parents):
            if any(not 0 <= parent < node for parent in parents):
                raise ValueError(f"node {node} has the parents {list(parents)}; each must be an earlier node")
        for node, weight in enumerate(self.weights):
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"node {node} has the weight {weight}; use a finite number from 0")

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """For each node, when it ends at the earliest."""
        ends: list[float] = []
        for parents, weight in zip(self.parents, self.weights, strict=True):
            ends.append(max((ends[parent] for parent in parents), default=0.0) + weight)
        return tuple(ends)

    @cached_property
    def slack(self) -> tuple[float, ...]:
        """For each node, how much later it could end without a longer span."""
        latest = [self.span] * len(self.weights)
        for node in range(len(self.weights) - 1, -1, -1):
            for parent in self.parents[node]:
                latest[parent] = min(latest[parent], latest[node] - self.weights[node])
        # rounding of sums is not slack
        slack = [late - end for late, end in zip(latest, self.ends, strict=True)]
        return tuple(0.0 if s <= _CLOSE * max(self.span, 1e-300) else s for s in slack)

    @property
    def work(self) -> float:
        """The sum of all weights: how long one agent alone would take."""
        return math.fsum(self.weights)

    @property
    def span(self) -> float:
        """The longest path: how long any number of agents takes at least."""
        return max(self.ends, default=0.0)

    @property
    def speedup(self) -> float:
        """Work over span, 1 or more; 1 for a graph that takes no time."""
        return self.work / self.span if self.span else 1.0

    @property
    def critical(self) -> tuple[int, ...]:
        """The nodes without slack: only these can change the span."""
        return tuple(node for node, slack in enumerate(self.slack) if not slack)

    @cached_property
    def max_width(self) -> int:
        """The most nodes of some length that run at the same time."""
        changes = []
        for end, weight in zip(self.ends, self.weights, strict=True):
            if weight > 0:
                changes += [(end - weight, 1), (end, -1)]
        width = widest = 0
        # an end goes before a start at the same moment; moments that differ by rounding are the same
        grain = max(self.span, 1e-300) * _CLOSE
        for _, change in sorted(changes, key=lambda c: (round(c[0] / grain), c[1])):
            width += change
            widest = max(widest, width)
        return widest

    def ancestors(self, node: int) -> frozenset[int]:
        """All nodes that a node comes after."""
        return self._ancestors[node]

    @cached_property
    def _ancestors(self) -> tuple[frozenset[int], ...]:
        before: list[frozenset[int]] = []
        for parents in self.parents:
            before.append(frozenset(parents).union(*(before[parent] for parent in parents)))
        return tuple(before)


@dataclass(frozen=True, slots=True)
class Rates:
    """How long turns take in modelled time, in seconds.

    Attributes:
        token_seconds: of a sampled token.
        prompt_token_seconds: of a token that is read.
        tool_seconds: of a call of a tool that `tools` does not name.
        tools: of a call, by tool.
    """

    token_seconds: float = 0.02
    prompt_token_seconds: float = 0.0
    tool_seconds: float = 1.0
    tools: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, turn: Mapping[str, Any]) -> float:
        """The modelled length of a turn; what the workflow computes by itself takes no time."""
        if turn["event"] == Event.TOOL:
            return float(self.tools.get(turn["tool"], self.tool_seconds))
        if turn["event"] != Event.LLM:
            return 0.0
        read, said = turn.get("num_prompt_tokens") or 0, turn["num_response_tokens"] or 0
        return self.prompt_token_seconds * read + self.token_seconds * said


def dag_of(turns: Sequence[Mapping[str, Any]], rates: Rates) -> Dag:
    """The graph of an episode's turns in their order: what each read (`parents`), what decided it and, where
    plays are spawned, what its own play did before it."""
    places = {turn["turn_index"]: place for place, turn in enumerate(turns)}

    def before(turn: Mapping[str, Any]) -> Iterable[int]:
        decided = turn.get("decided_by")
        return [*(turn["parents"] or ()), *(() if decided is None else (decided,))]

    parents = [
        sorted({*(places[index] for index in before(turn) if index in places), *order})
        for turn, order in zip(turns, in_play(turns), strict=True)
    ]
    return Dag(parents, [rates.seconds(turn) for turn in turns])


def in_play(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Where plays are spawned: the places of the turns that a play had behind it, read or not.

    A play does one thing after another, but for its branches: they begin where it stands, and it goes on
    when all are over. Where nobody is spawned, what was read says what waited for what, and there are none.
    """
    if not any(turn.get("instance") for turn in turns):
        return [[] for _ in turns]
    last: dict[tuple[str | None, str], int] = {}  # of a play's branch
    before = []
    for place, turn in enumerate(turns):
        play, branch = turn.get("instance"), turn.get("branch") or ""
        inside = [at for (of, name), at in last.items() if of == play and name.startswith(f"{branch}.")]
        inside += [at for (of, name), at in last.items() if of == play and not branch and name]
        key: str | None = branch
        while key and (play, key) not in last:
            key = key.rpartition(".")[0]
        own = last.get((play, key or ""))
        before.append([*inside, *([] if own is None else [own])])
        last[play, branch] = place
    return before
