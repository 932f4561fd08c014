"""Limits of an episode, and asking something that may fail: retries, time limits, causes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import TypeVar

from workflows.coroutines import stop
from workflows.errors import CadreError, InfraError, NotDemonstrated, ToolRefusal, UsageError, describe
from workflows.vocabulary import Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """What one episode may take. Times are in seconds.

    `max_turns` bounds its turns. `call_timeout_seconds` and `tool_timeout_seconds` bound one call with
    all its attempts. An attempt that fails with `InfraError` is made again, at most `call_attempts` in
    all, after `backoff_seconds` times 1, 2, 4, … and a derived jitter of ±50 %. What is cancelled has
    `grace_seconds` to end; after that it is left behind. One JSON value (a request, a result, a parsed
    reply) has at most `max_value_bytes`.
    """

    max_turns: int = 64
    call_timeout_seconds: float = 600.0
    tool_timeout_seconds: float = 60.0
    episode_timeout_seconds: float = 1800.0
    call_attempts: int = 3
    backoff_seconds: float = 0.5
    grace_seconds: float = 5.0
    max_value_bytes: int = 8 * 2**20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name == "backoff_seconds" else 1 if isinstance(field.default, int) else 1e-9
            if not low <= value < math.inf:
                raise UsageError(f"{field.name} must be a finite number of at least {low:g}, got {value}")


class CallFailed(CadreError):
    """All attempts are used up, the time is over, or the callee is broken. `status` is that of the turn."""

    def __init__(self, status: Status, detail: str):
        super().__init__(detail)
        self.status = status


async def attempt(
    ask: Callable[[int], Awaitable[T]],
    *,
    attempts: int,
    timeout_seconds: float,
    pause: Callable[[int], float],
    grace_seconds: float,
) -> T:
    """`await ask(n)` for n = 1, 2, … until one succeeds; `pause(n)` seconds lie between n and n + 1.

    All of it takes at most `timeout_seconds`; `inf` sets no limit. Only `InfraError` is worth another
    attempt: any other exception is a fault of the callee. A callee that ignores its cancellation is left
    behind, and the detail says so.

    Raises:
        CallFailed: with status `infra_error`, `timeout` or `not_demonstrated`, and the cause.
        ToolRefusal, asyncio.CancelledError: passed on as they are.
    """
    work = asyncio.create_task(_until_one_succeeds(ask, attempts, pause))
    expired, ended = False, True
    try:
        await asyncio.wait({work}, timeout=None if math.isinf(timeout_seconds) else timeout_seconds)
        if expired := not work.done():
            ended = await stop({work}, grace_seconds)
    except asyncio.CancelledError:
        await stop({work}, grace_seconds)
        raise
    # a reply that came while it was being stopped is as good as any other
    if expired and (not ended or work.cancelled() or work.exception()):
        left = "" if ended else f", and it did not end within {grace_seconds:g} s of being cancelled"
        raise CallFailed(Status.TIMEOUT, f"no reply within {timeout_seconds:g} s{left}")
    try:
        return work.result()
    except ToolRefusal:
        raise
    except InfraError as error:
        raise CallFailed(Status.INFRA_ERROR, str(error) or "InfraError without a message") from error
    except NotDemonstrated as error:
        raise CallFailed(Status.NOT_DEMONSTRATED, str(error)) from error
    except Exception as error:
        raise CallFailed(Status.INFRA_ERROR, describe(error)) from error


async def _until_one_succeeds(
    ask: Callable[[int], Awaitable[T]], attempts: int, pause: Callable[[int], float]
) -> T:
    for number in range(1, attempts):
        try:
            return await ask(number)
        except InfraError:
            await asyncio.sleep(pause(number))
    return await ask(attempts)
