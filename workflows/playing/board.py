"""What a graph's steps wrote so far, and which part of it each callable may see.

A callable sees steps that are certain to be over when it is asked: those before it, and earlier rounds
of its own loop. What a parallel step may or may not have written yet is not shown, so no prompt and no
route depends on which call came back first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workflows.errors import WorkflowError, did_you_mean
from workflows.state import Output, State, TurnKey
from workflows.structure import Structure

Slot = tuple[str, str]
"""A step and its branch; "" outside branches."""


class Board:
    """Outputs by slot, the items of each `for_each` step, and marks of where each loop last began anew."""

    def __init__(self, structure: Structure, inputs: Mapping[str, Any]):
        self._structure = structure
        self._inputs = inputs
        # with each output the number of the spread it belongs to: 0 outside branches
        self._outputs: dict[Slot, list[tuple[int, Output]]] = {}
        self._items: dict[str, tuple[Sequence[Any], frozenset[TurnKey]]] = {}
        self._spreads: dict[str, int] = {}
        self._marks: dict[tuple[int, str], dict[Slot, int]] = {}

    def write(self, slot: Slot, output: Output) -> None:
        region = self._structure.region[slot[0]]
        self._outputs.setdefault(slot, []).append((self._spreads[region] if region else 0, output))

    def last(self, slot: Slot) -> Output:
        return self._outputs[slot][-1][1]

    def spread(self, step: str, items: Sequence[Any], reads: frozenset[TurnKey]) -> None:
        """`step` has one branch for each item, until `gather`."""
        self._items[step] = (items, reads)
        self._spreads[step] = self._spreads.get(step, 0) + 1

    def gather(self, step: str) -> None:
        self._items.pop(step, None)

    def branches(self, step: str) -> list[str] | None:
        """The branches in which a step runs: [""] outside, None while they are not known."""
        region = self._structure.region[step]
        if region is None:
            return [""]
        return [str(i) for i in range(len(self._items[region][0]))] if region in self._items else None

    def mark(self, loop: int, branch: str) -> None:
        """A loop begins a new round: what is written by now belongs to earlier rounds."""
        self._marks[loop, branch] = {slot: len(written) for slot, written in self._outputs.items()}

    def view(self, viewer: str, branch: str, round: int, *, after: bool = False) -> State:
        """The state for a callable of `viewer`; with `after`, as seen when `viewer` itself is over."""
        region = self._structure.region[viewer]
        item = None
        if region is not None and branch:
            items, reads = self._items[region]
            item = (items[int(branch)], reads)
        return State(self._inputs, round, branch, lambda step: self._look(viewer, branch, step, after), item)

    def over(self, viewer: str, branch: str) -> set[TurnKey]:
        """The turns that are over when `viewer` starts, and that it could read."""
        keys: set[TurnKey] = set()
        for step in self._structure.order:
            if self._structure.sees(viewer, step):
                for history in self._histories(viewer, branch, step, after=False):
                    keys.update(output.key for _, output in history)
        return keys

    def _look(self, viewer: str, branch: str, step: str, after: bool) -> tuple[bool, tuple[Output, ...]]:
        """Whether `step` has branches as seen from here, and its latest output in each of them."""
        region = self._structure.region
        if step not in region:
            raise WorkflowError(f"there is no step {step!r}{did_you_mean(step, region)}")
        if not (self._structure.sees(viewer, step) or (after and step == viewer)):
            raise WorkflowError(
                f"step {step!r} is not before step {viewer!r}, so it may not have run yet; add an edge"
            )
        # one history for each branch of `step` that may be seen, as far as it may be seen
        histories = [h for h in self._histories(viewer, branch, step, after) if h]
        # outside branches, or in the viewer's own branch, there is one output to see
        is_single = region[step] is None or self._same_branch(viewer, branch, step)
        # steps in branches: outputs of the latest spread alone, which in the viewer's branch is its own
        if (root := region[step]) is not None:
            spread = self._spreads[root] if is_single else max((h[-1][0] for h in histories), default=0)
            histories = [h for h in histories if h[-1][0] == spread]
        return not is_single, tuple(history[-1][1] for history in histories)

    def _histories(
        self, viewer: str, branch: str, step: str, after: bool
    ) -> Iterator[list[tuple[int, Output]]]:
        """The outputs of `step` in each branch that `viewer` looks at: all, or those of earlier rounds."""
        counts: dict[Slot, int] | None = None  # by slot, how many outputs may be seen; None: all of them
        # a step that is not before the viewer shares a loop with it: what it wrote in earlier rounds is seen
        if step not in self._structure.before[viewer] and not (after and step == viewer):
            loop = self._structure.common_loop(viewer, step)
            assert loop is not None, "callers ask for steps that are seen"
            counts = self._marks.get((loop, branch if self._structure.loops[loop].inside else ""), {})
        for slot in self._slots(viewer, branch, step):
            written = self._outputs.get(slot, [])
            yield written if counts is None else written[: counts.get(slot, 0)]

    def _slots(self, viewer: str, branch: str, step: str) -> list[Slot]:
        """The slots of `step` that `viewer` looks at: that outside branches, of its branch, or of all."""
        if self._structure.region[step] is None:
            return [(step, "")]
        if self._same_branch(viewer, branch, step):
            return [(step, branch)]
        return sorted((s for s in self._outputs if s[0] == step), key=lambda s: int(s[1]))

    def _same_branch(self, viewer: str, branch: str, step: str) -> bool:
        return bool(branch) and self._structure.region[step] == self._structure.region[viewer]
