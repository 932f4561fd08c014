"""Limits of an episode, and asking something that may fail: retries, time limits, causes."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import TypeVar

from workflows.errors import CadreError, InfraError, ToolRefusal, UsageError
from workflows.trajectory import INFRA_ERROR, TIMEOUT

T = TypeVar("T")
_MAX_DETAIL = 2000  # characters of a cause that a row keeps


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """What one episode may take. Times are in seconds.

    `max_turns` bounds its turns. `call_timeout_seconds` and `tool_timeout_seconds` bound one call with
    all its attempts. An attempt that fails with `InfraError` is made again, at most `call_attempts` in
    all, after `backoff_seconds` times 1, 2, 4, … and a derived jitter of ±50 %.
    """

    max_turns: int = 64
    call_timeout_seconds: float = 600.0
    tool_timeout_seconds: float = 60.0
    episode_timeout_seconds: float = 1800.0
    call_attempts: int = 3
    backoff_seconds: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name == "backoff_seconds" else 1 if isinstance(field.default, int) else 1e-9
            if not low <= value < math.inf:
                raise UsageError(f"{field.name} must be a finite number of at least {low:g}, got {value}")


class CallFailed(CadreError):
    """All attempts are used up, the time is over, or the callee is broken. `status` is that of the turn."""

    def __init__(self, status: str, detail: str):
        super().__init__(detail)
        self.status = status


async def attempt(
    ask: Callable[[int], Awaitable[T]],
    *,
    attempts: int,
    timeout_seconds: float,
    pause: Callable[[int], float],
) -> T:
    """`await ask(n)` for n = 1, 2, … until one succeeds; `pause(n)` seconds lie between n and n + 1.

    Only `InfraError` is worth another attempt: any other exception is a fault of the callee.

    Raises:
        CallFailed: with status `infra_error` or `timeout`, and the cause.
        ToolRefusal, asyncio.CancelledError: passed on as they are.
    """
    try:
        async with asyncio.timeout(timeout_seconds) as clock:
            for number in range(1, attempts + 1):
                try:
                    return await ask(number)
                except InfraError:
                    if number == attempts:
                        raise
                await asyncio.sleep(pause(number))
        raise AssertionError("unreachable: the last attempt returns or raises")
    except ToolRefusal:
        raise
    except InfraError as error:
        raise CallFailed(INFRA_ERROR, str(error) or "InfraError without a message") from error
    except Exception as error:
        if isinstance(error, TimeoutError) and clock.expired():
            raise CallFailed(TIMEOUT, f"no reply within {timeout_seconds:g} s") from error
        raise CallFailed(INFRA_ERROR, describe(error)) from error


def describe(error: BaseException) -> str:
    """Type, message and place of an exception, in one line of bounded length."""
    if isinstance(error, CadreError):
        return str(error)[:_MAX_DETAIL]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}"[:_MAX_DETAIL] + place
