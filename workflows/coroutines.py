"""asyncio tasks that a play begins: ended in bounded time, and their exceptions looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def awaited(work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """`await work(*arguments)` as a coroutine, which a task needs, whatever awaitable `work` returns."""
    return await work(*arguments)


async def stop(tasks: Collection[asyncio.Task[Any]], grace_seconds: float) -> bool:
    """Cancel tasks and wait for their end, at most `grace_seconds`. False if one is left behind."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(_look)
    _, pending = await asyncio.wait(tasks, timeout=grace_seconds) if tasks else (set(), set())
    return not pending


def _look(task: asyncio.Task[Any]) -> None:
    """Take note of a task's exception, which asyncio would else print when the task is thrown away."""
    if not task.cancelled():
        task.exception()


def unseen_errors(tasks: Iterable[asyncio.Task[Any]]) -> list[BaseException]:
    """Exceptions of finished tasks that nobody awaited; asyncio would print them and go on."""
    unseen = [task for task in tasks if task.done() and not task.cancelled() and task._log_traceback]
    return [error for task in unseen if (error := task.exception()) is not None]
