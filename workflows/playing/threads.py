"""Threads for tools that are plain functions. A tool that never returns costs its thread, and nothing else.

`asyncio.to_thread` would not do: its few threads (cores + 4) are shared with everything in the process,
time in its queue would count as the tool's, and the process could not end while one of them hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from workflows.playing.attempts import CallFailed
from workflows.vocabulary import Status

MAX_THREADS: Final = 64


class ToolThreads:
    """At most `limit` threads at a time, those among them that outlived their call.

    Use it from one event loop.
    """

    def __init__(self, limit: int = MAX_THREADS):
        self.limit = limit
        self.stray = 0  # threads that still run although their call was given up
        self._taken = 0
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Room for one thread, waited for here and not on the clock of the call.

        Raises:
            CallFailed: every thread is a stray, so that waiting could last for ever.
        """
        while self._taken >= self.limit:
            if self.stray >= self.limit:
                raise CallFailed(
                    Status.INFRA_ERROR,
                    f"all {self.limit} tool threads are busy with calls that timed out; give the tool a time "
                    "limit of its own",
                )
            await self._changed.wait()
        self._taken += 1
        slot = Slot(self._ended)
        try:
            yield slot
        finally:
            slot.left = True
            if slot.busy:
                self.stray += 1
            else:
                self._taken -= 1
            self._change()

    def _ended(self, slot: Slot) -> None:
        slot.busy = False
        if slot.left:
            self.stray -= 1
            self._taken -= 1
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Slot:
    """Room for one thread at a time."""

    def __init__(self, ended: Callable[[Slot], None]):
        self.busy = False
        self.left = False
        self._ended = ended

    async def run(self, function: Callable[[Any], Any], request: Any) -> Any:
        """`function(request)` in a thread of its own. Cancelling gives the call up; the thread goes on."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(result: Any, error: BaseException | None) -> None:
            self._ended(self)
            if reply.done():  # given up
                return
            if error is None:
                reply.set_result(result)
            else:
                reply.set_exception(error)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function, request)
            except StopIteration as stopped:  # a future does not take it
                error = RuntimeError(f"StopIteration: {stopped}")
            except SystemExit as left:
                error = RuntimeError(f"the tool called exit({left.code!r})")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(deliver, result, error)

        threading.Thread(target=work, name="cadre-tool", daemon=True).start()
        self.busy = True
        return await reply
