"""SIGTERM and SIGINT end a run through its `finally` blocks, so that the fleet is released."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(BaseException):
    """The process was asked to stop. Not an `Exception`: nothing on the way may swallow it."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; the same command goes on from the last finished stage or shard")
        self.exit_code = 128 + number


def stop_behind(error: BaseException) -> Stopped | None:
    """The stop that `error` came from: compiled code that is interrupted wraps it in a SystemError."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, Stopped):
        at = at.__cause__ or at.__context__
    return at


def raise_on_stop_signals() -> None:
    """Turn the first SIGTERM or SIGINT into `Stopped`; ignore repeats while things are released."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
