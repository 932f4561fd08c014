"""Calls that may hang, run where they can be left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from workflows.errors import CadreError

T = TypeVar("T")


class Worker:
    """One daemon thread that runs calls in order, so that a caller can stop waiting for one.

    A call that hangs keeps the thread; later calls then fail at once instead of waiting as well.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._late: Future[Any] | None = None
        self._closed = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` after those before it, and don't wait."""
        future: Future[T] = Future()
        self._jobs.put((call, future))
        return future

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """The result of `call`, after those before it.

        Raises:
            TimeoutError: it has not come back within `seconds`, or one before it that was given up
                has not come back yet.
            Exception: what `call` raised.
        """
        if self._closed:
            raise CadreError("the worker is closed")
        if self._late is not None and not self._late.done():
            raise TimeoutError("an earlier call has still not come back")
        future = self.submit(call)
        try:
            return future.result(timeout=seconds)
        except TimeoutError:
            if future.done():
                raise  # the call's own
            self._late = future
            raise TimeoutError(f"no answer within {seconds:g} s") from None

    def close(self) -> None:
        self._closed = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
