"""What the edges of a workflow mean: running order, branches, loops, and which step sees which.

Everything here is derived once from the declared graph and then only read. `workflows.validation`
refuses graphs for which it would not be well defined.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workflows.errors import WorkflowError
from workflows.steps import Edge, Step

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that run again together.

    `back` are positions of its back edges among all edges; `inside` says that it turns within one branch,
    apart from the other branches.
    """

    target: str
    back: tuple[int, ...]
    body: frozenset[str]
    inside: bool


@dataclass(frozen=True)
class Structure:
    """The derived structure of one workflow.

    Attributes:
        order: all steps, each after those that its forward edges come from, else as declared.
        incoming, outgoing: positions of each step's forward edges.
        region: the `for_each` step in whose branches a step runs (itself included), or None.
        before: the steps that are over, ran or skipped, when a step runs.
        loops: smaller ones first; two loops are nested or disjoint.
        leaves: for each edge, the largest loop that it leaves, as a position in `loops`, or None.
    """

    order: tuple[str, ...]
    incoming: Mapping[str, tuple[int, ...]]
    outgoing: Mapping[str, tuple[int, ...]]
    region: Mapping[str, str | None]
    before: Mapping[str, frozenset[str]]
    loops: tuple[Loop, ...]
    leaves: tuple[int | None, ...]

    @classmethod
    def of(cls, steps: Sequence[Step], edges: Sequence[Edge]) -> Structure:
        """The structure of a graph with these steps and edges.

        Raises:
            WorkflowError: a cycle of forward edges, or a back edge that does not lead back.
        """
        names = [step.name for step in steps]
        forward = [i for i, e in enumerate(edges) if e.limit is None]
        incoming = {n: tuple(i for i in forward if edges[i].target == n) for n in names}
        outgoing = {n: tuple(i for i in forward if edges[i].source == n) for n in names}
        parents = {n: [edges[i].source for i in incoming[n]] for n in names}
        order = topological(names, parents)
        region = _regions(steps, order, parents)
        loops = _loops(edges, _before(order, parents), region)
        leaves = tuple(
            max((k for k, loop in enumerate(loops) if e.source in loop.body and e.target not in loop.body),
                default=None)
            for e in edges
        )  # fmt: skip
        # a step that follows a loop starts when all of the loop is over, and so may read all of it
        over = {n: {*parents[n]}.union(*(loops[k].body for i in incoming[n] if (k := leaves[i]) is not None))
                for n in names}  # fmt: skip
        before = _before(order, over)
        return cls(order, incoming, outgoing, region, before, loops, leaves)

    def common_loop(self, one: str, other: str) -> int | None:
        """The smallest loop that holds both steps."""
        for index, loop in enumerate(self.loops):
            if one in loop.body and other in loop.body:
                return index
        return None

    def sees(self, viewer: str, step: str) -> bool:
        """Whether a callable of `viewer` may read `step`: one before it, or in its loop (earlier rounds)."""
        return step in self.before[viewer] or self.common_loop(viewer, step) is not None


def _before(order: Iterable[str], after: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """For each step of `order` what comes before it, given what it directly comes after."""
    before: dict[str, frozenset[str]] = {}
    for name in order:
        before[name] = frozenset(after[name]).union(*(before[p] for p in after[name]))
    return before


def topological(names: Sequence[K], parents: Mapping[K, Iterable[K]]) -> tuple[K, ...]:
    """Names so that each comes after its parents, and otherwise in the given order.

    Raises:
        WorkflowError: there is a cycle; the message walks it.
    """
    rank = {name: i for i, name in enumerate(names)}
    waiting = {name: set(parents[name]) for name in names}
    ready = [rank[name] for name in names if not waiting[name]]
    order: list[K] = []
    while ready:
        done = names[heapq.heappop(ready)]
        order.append(done)
        for name in names:
            if done in waiting[name]:
                waiting[name].discard(done)
                if not waiting[name]:
                    heapq.heappush(ready, rank[name])
    if len(order) < len(names):
        cycle = " → ".join(map(str, _cycle(waiting, set(order))))
        raise WorkflowError(
            f"edges form a cycle: {cycle}; give the edge that leads back a limit, "
            "as in Edge(source, target, when=…, limit=3)"
        )
    return tuple(order)


def _cycle(waiting: Mapping[K, set[K]], done: set[K]) -> list[K]:
    """One cycle among the steps that wait for each other, in the direction of the edges."""
    path = [next(name for name in waiting if name not in done)]
    while (parent := next(iter(waiting[path[-1]]))) not in path:
        path.append(parent)
    return [parent, *reversed(path[path.index(parent) :])]


def _regions(
    steps: Iterable[Step], order: Iterable[str], parents: Mapping[str, list[str]]
) -> dict[str, str | None]:
    step_of = {step.name: step for step in steps}
    region: dict[str, str | None] = {}
    for name in order:
        step = step_of[name]
        if step.for_each is not None:
            region[name] = name
        else:
            region[name] = region[parents[name][0]] if step.same_branch and parents[name] else None
    return region


def _loops(
    edges: Sequence[Edge], before: Mapping[str, frozenset[str]], region: Mapping[str, str | None]
) -> tuple[Loop, ...]:
    """Natural loops: back edges with one target make one loop."""
    back: dict[str, list[int]] = {}
    for index, edge in enumerate(edges):
        if edge.limit is not None:
            if edge.target != edge.source and edge.target not in before[edge.source]:
                raise WorkflowError(
                    f"edge {edge.source!r} → {edge.target!r} has a limit, so it must lead back, but "
                    f"{edge.target!r} is not before {edge.source!r}; remove the limit or turn the edge round"
                )
            back.setdefault(edge.target, []).append(index)
    loops = []
    for target, indices in back.items():
        sources = {edges[i].source for i in indices}
        body = {target, *sources} | {
            name
            for name, earlier in before.items()
            if target in earlier and any(name in before[s] for s in sources)
        }
        inside = all(region[s] is not None for s in sources)
        loops.append(Loop(target, tuple(indices), frozenset(body), inside))
    return tuple(sorted(loops, key=lambda loop: len(loop.body)))
