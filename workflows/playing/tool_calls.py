"""Calls of tools within one episode: in a thread or awaited, tried again, served from a base, closed.

What goes wrong is raised as `CallFailed`; the episode puts it on the turn's row.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from workflows.errors import ToolRefusal
from workflows.hooks import ToolHooks, hooks_of
from workflows.playing.attempts import CallFailed, PlayLimits, attempt
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.opened import OpenedTool
from workflows.playing.record import Record, Turn
from workflows.playing.threads import Slot, ToolThreads
from workflows.state import Output, TurnKey
from workflows.vocabulary import Origin, Status

T = TypeVar("T")


class ToolCalls:
    """The tools of one play.

    Args:
        threads: where tools that are plain functions run.
        base: the stored episode that this one begins with.
        seed: of this episode, from its parts.
        as_text: a JSON value as text that fits a row; its second argument says what it is.
        not_before: by turn, when the stored call was called off; this fills it.
    """

    def __init__(
        self,
        record: Record,
        limits: PlayLimits,
        threads: ToolThreads,
        base: BaseEpisode | None,
        seed: Callable[..., int],
        as_text: Callable[[Any, str], str],
        not_before: dict[TurnKey, float],
    ):
        self._record = record
        self._limits = limits
        self._threads = threads
        self._base = base
        self._seed = seed
        self._json = as_text
        self._not_before = not_before
        self._opened: dict[str, OpenedTool] = {}  # by name: tools that live as long as this episode

    async def ask(self, turn: Turn, function: Callable[[Any], Any], request: Any) -> Output:
        """The output of one call; a refused request gives one that is not valid.

        Raises:
            CallFailed: it failed, and not by the policy's doing.
        """
        hooks = hooks_of(function, ToolHooks)
        if self._base is not None:
            self._not_before[turn.key] = self._base.tool_called_off_at(turn.key, turn.row["tool_request"])
        if turn.begun is not None:
            turn.begun()
        stored = self._base and self._base.call(turn.key, turn.row["tool"], turn.row["tool_request"])
        if stored and self._base and self._base.by_place:
            return _kept_result(turn, stored)
        if hooks.one_episode:
            function = self._opened_tool(turn.row["tool"], function)
        elif stored and hooks.deterministic:
            return _kept_result(turn, stored)
        if stored:
            turn.row["origin"] = Origin.REPLAYED
        seconds = math.inf if hooks.keeps_time else self._limits.tool_timeout_seconds
        try:
            if is_async(function):
                result = await self._ask_tool(turn, function, request, seconds)
            else:
                async with self._threads.slot() as slot:
                    result = await self._in_thread(turn, slot, function, request, seconds)
        except ToolRefusal as refusal:
            turn.row.update(status=Status.TOOL_ERROR, status_detail=str(refusal))
            return Output(None, "", False, turn.key)
        text = self._json(result, f"the result of tool {turn.row['tool']!r}")
        turn.row.update(tool_result=text, status=Status.OK)
        return Output(result, "", True, turn.key)

    def _opened_tool(self, name: str, tool: Callable[[Any], Any]) -> OpenedTool:
        return self._opened.setdefault(name, OpenedTool(tool, self._seed("tool", name)))

    async def close(self) -> None:
        """Close the tools that this episode opened. One that can't be closed is a fault of the episode."""
        while self._opened:
            name, opened = self._opened.popitem()
            try:
                async with self._threads.slot() as slot, asyncio.timeout(self._limits.tool_timeout_seconds):
                    await slot.run(opened.close, None)
            except Exception as error:
                self._record.fault(TurnKey("", 0, ""), f"closing tool {name!r}", error)

    async def _in_thread(
        self, turn: Turn, slot: Slot, function: Callable[[Any], Any], request: Any, seconds: float
    ) -> Any:
        async def ask(request: Any) -> Any:
            result = await slot.run(function, request)
            return await result if inspect.isawaitable(result) else result

        try:
            return await self._ask_tool(turn, ask, request, seconds)
        except CallFailed as error:
            if not slot.busy:
                raise
            strays = f"{self._threads.stray + 1} of {self._threads.limit} threads are like it"
            raise CallFailed(error.status, f"{error}, and its thread goes on ({strays})") from error

    async def _ask_tool(
        self, turn: Turn, function: Callable[[Any], Awaitable[Any]], request: Any, seconds: float
    ) -> Any:
        async def ask(number: int) -> Any:
            turn.row.update(attempts=number, started_at=self._record.now())
            try:
                return await function(request)
            except SystemExit as left:  # else it would end the process with all its episodes
                raise RuntimeError(f"the tool called exit({left.code!r})") from left

        return await attempted(turn, ask, seconds, self._limits, self._seed)


async def attempted(
    turn: Turn,
    ask: Callable[[int], Awaitable[T]],
    timeout_seconds: float,
    limits: PlayLimits,
    seed: Callable[..., int],
) -> T:
    """What one of several attempts at a call gives, with pauses that only the episode's seed decides.

    Raises:
        CallFailed: none of them did.
    """

    def pause(number: int) -> float:
        jitter = seed(*turn.key, "backoff", number) / 2**63  # in [0, 1)
        return limits.backoff_seconds * 2 ** (number - 1) * (0.5 + jitter)

    return await attempt(
        ask,
        attempts=limits.call_attempts,
        timeout_seconds=timeout_seconds,
        pause=pause,
        grace_seconds=limits.grace_seconds,
    )


def _kept_result(turn: Turn, stored: Mapping[str, Any]) -> Output:
    """The output of a stored call of a tool, which is not made again, in the row of this turn."""
    same = ("status", "status_detail", "tool_result", "attempts")
    turn.row.update({name: stored[name] for name in same}, origin=Origin.COPIED)
    if stored["status"] != Status.OK:
        return Output(None, "", False, turn.key)
    return Output(json.loads(stored["tool_result"]), "", True, turn.key)


def is_async(function: Callable[[Any], Any]) -> bool:
    """Whether a tool is awaited where it is called; all others run in a thread."""
    call = getattr(type(function), "__call__", None)  # noqa: B004 - asked of its class, not whether it is there
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
