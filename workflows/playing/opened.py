"""Tools that live for one episode: opened by its first call, closed at its end, whatever the end is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from workflows.errors import ToolRefusal, describe


class OpenedTool:
    """What answers the calls of one episode. A plain function: it is opened, asked and closed in threads.

    A call that fails may have changed it half-way, so every later one, another attempt too, is refused with
    the first failure.

    Args:
        tool: with `one_episode`: gives what answers the episode's requests.
        seed: of the episode; equal whenever it is played.
    """

    def __init__(self, tool: Callable[[Any], Any], seed: int) -> None:
        self._tool, self._seed = tool, seed
        self._opened: Callable[[Any], Any] | None = None
        self._failure: str | None = None
        self._closed = False
        self._one_at_a_time = threading.Lock()

    def __call__(self, request: Any) -> Any:
        with self._one_at_a_time:
            if self._closed:
                raise RuntimeError("the episode of this tool is over")
            if self._failure is not None:
                raise RuntimeError(f"an earlier call of this episode failed: {self._failure}")
            try:
                if self._opened is None:
                    self._opened = self._tool(self._seed)
                result: Any = self._opened(request)
                return result
            except ToolRefusal:
                raise
            except BaseException as error:
                self._failure = describe(error) if isinstance(error, Exception) else repr(error)
                raise

    def close(self, _: Any = None) -> None:
        """Close what was opened, once; waits for a call that still runs."""
        with self._one_at_a_time:
            was_closed, self._closed = self._closed, True
            close = getattr(self._opened, "close", None)
            if close is not None and not was_closed:
                close()
