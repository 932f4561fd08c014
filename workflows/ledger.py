"""What all teams of one play share: the episode that they call, who may be called, and what is under way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from workflows.pace import Spawning
from workflows.roles import Role
from workflows.state import Output, Place, TurnKey
from workflows.steps import Tool
from workflows.timeline import Timeline


class Calls(Protocol):
    """What a team needs of the play it belongs to: `workflows.playing.episode.Episode`."""

    @property
    def full(self) -> bool: ...

    def call(self, role: str, variables: Mapping[str, Any], place: Place) -> Coroutine[Any, Any, Output]: ...

    def tool(self, name: str, request: Any, place: Place) -> Coroutine[Any, Any, Output]: ...

    def control(self, value: Any, place: Place, columns: Mapping[str, Any] = ...) -> Output: ...

    def seed(self, *parts: object) -> int: ...

    @property
    def replays(self) -> bool: ...

    def tokens(self, key: TurnKey) -> tuple[int, int]: ...

    def modelled(self, key: TurnKey, at: float) -> None: ...

    def stored_at(self, key: TurnKey) -> float | None: ...

    @property
    def stored_end(self) -> float: ...

    def not_before(self, key: TurnKey) -> float: ...

    def call_off(self, key: TurnKey, at: float | None) -> None: ...

    def took(self, seconds: float | None) -> None: ...

    def span(self, key: TurnKey, characters: tuple[int, int]) -> tuple[int, int] | None: ...

    def compact(self, role: str, branch: str) -> tuple[str, str, str] | None: ...


@dataclass(slots=True)
class Ledger:
    """What all teams of one play share: who may be called, and what has been called."""

    episode: Calls
    roles: Mapping[str, Role]
    tools: Mapping[str, Tool]
    steps: Mapping[str, str | None]  # step → the role or tool that acts in it, None for a note
    grace_seconds: float
    rounds: dict[tuple[str, str], int] = field(default_factory=dict)  # calls so far, by step and branch
    # so far, by the branch that acts and the turn that decided them
    acts: Counter[tuple[str, TurnKey | None]] = field(default_factory=Counter)
    calls: set[asyncio.Task[Output]] = field(default_factory=set)  # under way
    owners: set[asyncio.Task[Any]] = field(default_factory=set)  # tasks that call a team
    teams: dict[str, Any] = field(default_factory=dict)  # by branch, the newest of each
    spawning: Spawning | None = None  # what may be spawned; None: nothing
    timeline: Timeline | None = None  # of a workflow that may spawn
    members: list[Any] = field(default_factory=list)  # plays that were spawned, in the order of spawns
    over: bool = False  # the function has ended
    full: bool = False  # a turn was wanted beyond the limit

    def begin(self, call: Coroutine[Any, Any, Output]) -> asyncio.Task[Output]:
        """The call as a task, which counts as under way until it is done."""
        task = asyncio.create_task(call)
        self.calls.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, call: asyncio.Task[Output]) -> None:
        self.calls.discard(call)
        if not call.cancelled():
            call.exception()  # it is on the record, whether or not the function awaits the call
