"""Play a declared graph on an `Episode`: which step starts next, and when a loop begins anew.

The rules stand in `workflows.graph`. A step starts when its edges say so, whichever call came back
first; a failed step leaves its edges open, so what depends on it never starts and all else is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from workflows.errors import TurnFailed, WorkflowError
from workflows.graph import Workflow
from workflows.playing.board import Board, Slot
from workflows.playing.episode import Episode, where
from workflows.state import Output, Place, State, TurnKey
from workflows.steps import ControlStep, LlmStep, Step
from workflows.vocabulary import StopReason

Progress = Literal["ran", "skipped", "running", "failed"]


class GraphRun:
    """One play of one graph. `await run()` once."""

    def __init__(self, workflow: Workflow, episode: Episode, inputs: Mapping[str, Any]):
        self._workflow = workflow
        self._structure = workflow.structure
        self._episode = episode
        self._board = Board(workflow.structure, inputs)
        self._tasks: dict[asyncio.Task[Output], Slot] = {}
        self._status: dict[Slot, Progress] = {}  # of this round; absent: not decided
        self._taken: dict[tuple[int, str], bool] = {}  # edges of this round, by the source's branch
        self._broken: set[tuple[int, str]] = set()  # edges whose condition raised: open for ever
        self._unspread: set[str] = set()  # steps whose for_each raised
        self._rounds: dict[Slot, int] = {}
        self._repeats: dict[tuple[int, str], int] = {}  # how often a back edge was taken
        self._ended: set[tuple[int, str]] = set()  # loops that are over, by branch
        self._full = False
        self._at_limit = False

    async def run(self) -> StopReason:
        """Play until nothing runs and nothing may start; return the stop reason.

        Raises:
            asyncio.CancelledError: after all calls in flight were cancelled.
        """
        try:
            self._advance()
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._collect(task)
                self._advance()
        except asyncio.CancelledError:
            self._episode.record.expired = True
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._full:
            return StopReason.MAX_TURNS
        return StopReason.LOOP_LIMIT if self._at_limit else StopReason.FINISHED

    def _collect(self, task: asyncio.Task[Output]) -> None:
        slot = self._tasks.pop(task)
        if task.cancelled() or isinstance(task.exception(), TurnFailed):
            self._status[slot] = "failed"  # the cause is on the record
        else:
            self._write(slot, task.result())

    def _write(self, slot: Slot, output: Output) -> None:
        self._board.write(slot, output)
        self._status[slot] = "ran"

    # --- steps ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Decide every step and every loop that can be decided, until nothing changes."""
        changed = True
        while changed and not self._full:
            changed = False
            for name in self._structure.order:
                changed |= self._decide(self._workflow.step_of[name])
            for loop in range(len(self._structure.loops)):  # inner loops come first
                changed |= self._turn_rounds(loop)

    def _decide(self, step: Step) -> bool:
        changed = False
        # a for_each step gets its branches first, when its edges are resolved
        if step.for_each is not None and self._board.branches(step.name) is None:
            verdict = None if step.name in self._unspread else self._verdict(step.name, "")
            if verdict is None or not self._spread(step, verdict):
                return False
            changed = True
        # then each branch runs or is skipped; branches of a for_each step were decided with it
        for branch in self._board.branches(step.name) or ():
            if (step.name, branch) in self._status or self._full:
                continue
            verdict = True if step.for_each is not None else self._verdict(step.name, branch)
            if verdict is not None:
                changed = True
                if verdict:
                    self._start(step, branch)
                else:
                    self._status[step.name, branch] = "skipped"
        return changed

    def _verdict(self, name: str, branch: str) -> bool | None:
        """Whether a step runs; None while an edge to it is open."""
        incoming = self._structure.incoming[name]
        taken = [self._edge_to(index, name, branch) for index in incoming]
        if None in taken:
            return None
        return any(taken) or not incoming

    def _edge_to(self, index: int, target: str, branch: str) -> bool | None:
        """One edge as its target sees it: an edge out of branches is taken if it is in any of them."""
        source = self._workflow.edges[index].source
        if branch and self._structure.region[source] == self._structure.region[target]:
            return self._edge(index, branch)
        branches = self._board.branches(source)
        if branches is None:
            return None
        taken = [self._edge(index, b) for b in branches]
        return None if None in taken else any(taken)

    def _edge(self, index: int, branch: str) -> bool | None:
        """Whether an edge is taken in a branch of its source; None while that is open."""
        # an edge that leaves a loop waits for the loop's end
        loop = self._structure.leaves[index]
        if loop is not None and (loop, self._loop_branch(loop, branch)) not in self._ended:
            return None
        status = self._status.get((self._workflow.edges[index].source, branch))
        if status == "ran":
            return self._holds(index, branch)
        return False if status == "skipped" else None

    def _holds(self, index: int, branch: str) -> bool | None:
        """Ask an edge's condition, once a round; None if it raises, now and from then on."""
        if (index, branch) in self._taken or (index, branch) in self._broken:
            return self._taken.get((index, branch))
        edge = self._workflow.edges[index]
        round = self._board.last((edge.source, branch)).round
        try:
            holds = True if edge.when is None else edge.when(self._view(edge.source, branch, round, True))
            if not isinstance(holds, bool):
                raise WorkflowError(f"it returned {holds!r}, expected True or False")
        except Exception as error:
            self._broken.add((index, branch))
            key = TurnKey(edge.source, round, branch)
            what = f"the condition of edge {edge.source!r} → {edge.target!r} after {where(key)}"
            self._episode.record.fault(key, what, error)
            return None
        self._taken[index, branch] = holds
        return holds

    def _spread(self, step: Step, taken: bool) -> bool:
        """Give a `for_each` step its branches; none if it is skipped. False if `for_each` raises."""
        assert step.for_each is not None
        key = TurnKey(step.name, self._round(step.name, ""), "")
        state = self._view(step.name, "", key.round)
        try:
            items = step.for_each(state) if taken else ()
            if not isinstance(items, list | tuple):
                raise WorkflowError(f"it returned a {type(items).__name__}, expected a list")
        except Exception as error:
            self._unspread.add(step.name)
            self._episode.record.fault(key, f"for_each of {where(key)}", error)
            return False
        self._board.spread(step.name, items, frozenset(state.reads))
        return True

    def _start(self, step: Step, branch: str) -> None:
        slot = (step.name, branch)
        key = TurnKey(step.name, self._round(*slot), branch)
        record = self._episode.record
        if record.full:
            self._full = True
            return
        state = self._view(step.name, branch, key.round)
        before = self._board.over(step.name, branch)
        what = ""
        try:
            if isinstance(step, LlmStep):
                variables = {}
                for name, source in step.inputs.items():
                    what = f"input {name!r} of "
                    variables[name] = state.follow(source) if isinstance(source, str) else source(state)
                work = self._episode.call(step.role, variables, Place(key, state.reads, before))
            elif isinstance(step, ControlStep):
                what = "compute of "
                value = step.compute(state)
                self._write(slot, self._episode.control(value, Place(key, state.reads, before)))
                return
            else:
                what = "request of "
                request = step.request(state)
                work = self._episode.tool(step.tool, request, Place(key, state.reads, before))
        except Exception as error:
            record.fault(key, f"{what}{where(key)}", error, event=step.event)
            self._status[slot] = "failed"
            return
        self._tasks[asyncio.create_task(work)] = slot
        self._status[slot] = "running"

    def _view(self, viewer: str, branch: str, round: int, after: bool = False) -> State:
        return self._board.view(viewer, branch, round, after=after)

    def _round(self, name: str, branch: str) -> int:
        # a branch that an earlier spread did not have begins at the round of the loop around it
        return max(self._rounds.get((name, branch), 0), self._rounds.get((name, ""), 0))

    # --- loops ------------------------------------------------------------------------------------

    def _loop_branch(self, loop: int, branch: str) -> str:
        return branch if self._structure.loops[loop].inside else ""

    def _turn_rounds(self, loop: int) -> bool:
        target = self._structure.loops[loop].target
        branches = self._board.branches(target) or () if self._structure.loops[loop].inside else [""]
        turned = [self._turn_round(loop, branch) for branch in branches]  # all of them, so no short cut
        return any(turned)

    def _turn_round(self, loop: int, branch: str) -> bool:
        """When a round is over, begin the next or end the loop. True if either happened."""
        if (loop, branch) in self._ended or not self._round_is_over(loop, branch):
            return False
        at_limit = False
        # the back edges in their order: the first that holds and has a repeat left begins the next round
        for index in self._structure.loops[loop].back:
            if self._status[self._workflow.edges[index].source, branch] != "ran":
                continue
            holds = self._holds(index, branch)
            if holds is None:
                return False
            if holds and self._repeats.get((index, branch), 0) < (self._workflow.edges[index].limit or 0):
                self._repeats[index, branch] = self._repeats.get((index, branch), 0) + 1
                self._begin_round(loop, branch)
                return True
            at_limit |= holds
        self._at_limit |= at_limit
        self._ended.add((loop, branch))
        return True

    def _round_is_over(self, loop: int, branch: str) -> bool:
        slots = self._slots(loop, branch)
        return slots is not None and all(self._status.get(slot) in ("ran", "skipped") for slot in slots)

    def _slots(self, loop: int, branch: str) -> list[Slot] | None:
        """All steps of a loop in all their branches; None while some of these are not known."""
        slots: list[Slot] = []
        for name in self._structure.loops[loop].body:
            branches = [branch] if self._structure.loops[loop].inside else self._board.branches(name)
            if branches is None:
                return None
            slots += [(name, b) for b in branches]
        return slots

    def _begin_round(self, loop: int, branch: str) -> None:
        """Make the loop's steps undecided again, and the loops inside it enterable."""
        body, inside = self._structure.loops[loop].body, self._structure.loops[loop].inside
        # what is on the board now belongs to earlier rounds; the steps are undecided, in the next round
        self._board.mark(loop, branch)
        for name, b in self._slots(loop, branch) or ():
            del self._status[name, b]
            self._rounds[name, b] = self._round(name, b) + 1
        # a loop around a for_each spreads it anew, so its branches are gone
        if not inside:
            for name in body:
                self._board.gather(name)
                if self._structure.region[name] is not None:
                    self._rounds[name, ""] = self._round(name, "") + 1

        def stale(index: int, b: str) -> bool:
            return self._workflow.edges[index].source in body and (not inside or b == branch)

        self._taken = {k: v for k, v in self._taken.items() if not stale(*k)}
        # repeats of this loop go on counting; those of loops inside it begin anew
        this_loops = set(self._structure.loops[loop].back)
        self._repeats = {k: v for k, v in self._repeats.items() if k[0] in this_loops or not stale(*k)}
        inner = {k for k, other in enumerate(self._structure.loops) if other.body < body}
        self._ended = {e for e in self._ended if not (e[0] in inner and (not inside or e[1] == branch))}
