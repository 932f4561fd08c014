"""A team whose calls take modelled time, and use up what its play was given.

`workflows.crew` is what plays do with one another; here is how each of them stands in the timeline: when a
call begins and is over, what its play has spent, and that it makes one call at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from workflows.errors import CadreError, TurnFailed, WorkflowError
from workflows.ledger import Ledger
from workflows.pace import Budget
from workflows.state import Output, Place, TurnKey
from workflows.team import Team
from workflows.timeline import Doing, Lane, Timeline
from workflows.vocabulary import Act

_EVENTS = (Act.MESSAGE, Act.DELEGATE, Act.RETURN)  # acts that others notice


class OutOfBudget(CadreError):
    """A play has used what it was given. It may catch this to give back what it has, and calls no more."""


@dataclass(slots=True)
class Spent:
    """What a play and those that it joined have used."""

    turns: int = 0
    tokens: int = 0


class TimedTeam(Team):
    """A team in a lane of the timeline of its episode."""

    def __init__(self, ledger: Ledger, branch: str, after: frozenset[TurnKey]):
        super().__init__(ledger, branch, after)
        assert ledger.timeline is not None
        assert ledger.spawning is not None
        self._timeline: Timeline = ledger.timeline
        self._spawning = ledger.spawning
        self.instance: str | None = None  # the id of the spawned play that this belongs to
        self._lane: Lane = self._timeline.trunk
        self._call: asyncio.Task[Output] | None = None
        self._budget, self._begin, self._spent = Budget(), 0.0, Spent()

    def _begun(
        self,
        step: str,
        read: Iterable[Output],
        begin: Callable[[Place], Coroutine[Any, Any, Output]],
        is_tool: bool = False,
    ) -> asyncio.Task[Output]:
        self._check_idle(f"step {step!r} is called")
        self._check_budget(step)
        key = self._next(step)
        opened: list[Coroutine[Any, Any, Output]] = []

        def timed(place: Place) -> Coroutine[Any, Any, Output]:
            opened.append(begin(place))
            return self._timed(opened[0], key, is_tool)

        self._call = super()._begun(step, read, timed)
        self._call.add_done_callback(lambda _: opened[0].close())  # where it was cancelled before it began
        self._lane.call = key
        self._spent.turns += 1
        return self._call

    async def _timed(self, call: Coroutine[Any, Any, Output], key: TurnKey, is_tool: bool) -> Output:
        """The call; over when its time is."""
        lane, episode, pace = self._lane, self._ledger.episode, self._spawning.pace
        began = lane.time
        try:
            output = await call
        except TurnFailed:  # it takes the least time, so that nothing that is decided before depends on it
            await self._timeline.land(lane, self._over_at(key, began + pace.least))
            episode.modelled(key, lane.time)
            raise
        prompt, response = episode.tokens(key)
        self._spent.tokens += response
        await self._timeline.land(lane, self._over_at(key, began + pace.lasts(prompt, response, is_tool)))
        episode.modelled(key, lane.time)
        return output

    def _over_at(self, key: TurnKey, at: float) -> float:
        """When a call is over: as it was, in a replay of what the clock decided, else at `at`."""
        episode = self._ledger.episode
        if self._by_stored_clock and (stored := episode.stored_at(key)) is not None:
            at = stored
        off = episode.not_before(key)
        return at if at > off else math.nextafter(off, math.inf)

    @property
    def _by_stored_clock(self) -> bool:
        return self._spawning.pace.order == "clock" and self._ledger.episode.replays

    def _stored(self, step: str) -> float:
        """When the next turn of a step happened, in a replay of what the clock decided; else 0."""
        if not self._by_stored_clock:
            return 0.0
        return self._ledger.episode.stored_at(self._next(step)) or 0.0

    def _due(self, step: str) -> float:
        """When what is waited for came, in a replay of what the clock decided; what never did, is last."""
        if not self._by_stored_clock:
            return 0.0
        episode = self._ledger.episode
        stored = episode.stored_at(self._next(step))
        return episode.stored_end + 1.0 if stored is None else stored

    def _stamp(self, step: str) -> float:
        return self._timeline.stamp(self._lane, self._stored(step), step in _EVENTS)

    def _place(self, key: TurnKey, parents: set[TurnKey], decided_by: TurnKey | None) -> Place:
        most = None if self._budget.tokens is None else max(1, self._budget.tokens - self._spent.tokens)
        until = self._over_at(key, 0.0) if self._by_stored_clock else None

        def begun() -> None:
            self._timeline.asked(self._lane, until or None)

        return Place(key, parents, self._last, self.instance, decided_by, most, begun)

    def _check_budget(self, step: str) -> None:
        """Refuse a call of a play that has used what it was given.

        Raises:
            OutOfBudget: naming what is used up.
        """
        limits, spent = self._budget, self._spent
        used = {"tokens": spent.tokens, "turns": spent.turns, "seconds": self._lane.time - self._begin}
        for name, limit in limits.as_dict().items():
            if used[name] >= limit:
                raise OutOfBudget(
                    f"{self.instance} has used {used[name]:g} of {limit:g} {name} before {step!r}"
                )

    def _check_idle(self, what: str) -> None:
        """Refuse what would run beside a call of the same play.

        Raises:
            TurnFailed: the play is over.
            WorkflowError: a call is under way.
        """
        if self._lane.over:
            raise TurnFailed(f"{what} in a play that is over")
        if self._lane.doing is not Doing.RUNNING or (self._call is not None and not self._call.done()):
            raise WorkflowError(
                f"{what} while a call of the same play is under way; await it first, and spawn what runs at "
                "the same time, or use team.each"
            )

    async def _idle(self) -> None:
        """Wait for a call that the play's function did not await."""
        if self._call is not None and not self._call.done():
            await asyncio.wait({self._call})
