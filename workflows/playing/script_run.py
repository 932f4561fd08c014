"""Play an async function on an `Episode`: its team, and what is said when it fails or leaves work undone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from workflows.coroutines import awaited, stop, unseen_errors
from workflows.crew import Crew
from workflows.errors import WorkflowError
from workflows.ledger import Ledger
from workflows.playing.episode import Episode
from workflows.script import ScriptWorkflow
from workflows.state import TurnKey
from workflows.team import Team, on_record
from workflows.timeline import Timeline
from workflows.vocabulary import StopReason


class ScriptRun:
    """One play of one function. `await run()` once."""

    def __init__(
        self, workflow: ScriptWorkflow, episode: Episode, inputs: Mapping[str, Any], grace_seconds: float
    ):
        self._workflow = workflow
        self._episode = episode
        self._inputs = MappingProxyType(dict(inputs))
        self._grace_seconds = grace_seconds
        self._ledger = Ledger(episode, workflow.roles, workflow.tools, workflow.steps, grace_seconds)
        if (spawning := workflow.spawning) is not None:
            live = spawning.pace.order == "clock" and not episode.replays
            self._ledger.spawning, self._ledger.timeline = spawning, Timeline(spawning.pace, live)

    async def run(self) -> StopReason:
        """Play until the function and all its calls are over; return the stop reason.

        Raises:
            asyncio.CancelledError: after the function and all calls in flight were cancelled.
        """
        ledger = self._ledger
        ledger.teams[""] = trunk = (Team if ledger.timeline is None else Crew)(ledger, "", frozenset())
        function = asyncio.create_task(self._played(trunk))
        try:
            await asyncio.wait({function})
            ledger.over = True
            self._judge(function)
            while ledger.calls:
                await asyncio.wait(ledger.calls)
        except asyncio.CancelledError:
            self._episode.record.expired = ledger.over = True
            await stop({function, *ledger.calls}, self._grace_seconds)
            raise
        finally:
            ledger.over = True
            await stop({m.task for m in ledger.members if not m.task.done()}, self._grace_seconds)
            await stop({owner for owner in ledger.owners if not owner.done()}, self._grace_seconds)
            unseen_errors(ledger.owners)  # of coroutines that the end of the function ended
        return StopReason.MAX_TURNS if ledger.full else StopReason.FINISHED

    async def _played(self, trunk: Team) -> None:
        """The function, and the end of all that it spawned."""
        try:
            await awaited(self._workflow.run, trunk, self._inputs)
        finally:
            if isinstance(trunk, Crew) and not self._episode.record.expired:
                await trunk.finish_trunk()

    def _judge(self, function: asyncio.Task[Any]) -> None:
        """Note what ended the function, if that is not on the record already."""
        record, owners = self._episode.record, self._ledger.owners
        error: BaseException | None = None
        if function.cancelled():
            error = None if record.failures else WorkflowError("it was cancelled from within")
        elif (raised := function.exception()) is not None:
            error = next((leaf for leaf in _leaves(raised) if not on_record(leaf)), None)
        elif left := [m.error for m in self._ledger.members if m.error and not on_record(m.error)]:
            error = left[0]
        elif lost := [e for e in unseen_errors(owners) if not on_record(e)]:
            error = lost[0]
        elif any(not owner.done() for owner in owners):
            error = WorkflowError(
                "it returned while a coroutine that it began still ran; await what you begin"
            )
        if error is not None:
            failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
            record.fault(TurnKey("", 0, ""), f"the function of workflow {self._workflow.name!r}", failed)


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions inside exception groups, as asyncio.TaskGroup raises them."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
