"""SIGTERM and SIGINT end a run through its `finally` blocks, so that the fleet is released.

The handler raises in the main thread. Beside it a thread reads every signal from a pipe, which works also
while the main thread is inside compiled code, or while a library has put its handler in place of this one:
that thread ends the process at a second signal, and where the first is not followed in time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

REPEAT_SECONDS: Final = 0.5  # a terminal and a parent process may both send one stop
HEARD_SECONDS: Final = 10.0  # the main thread does not notice a signal inside compiled code
RELEASE_SECONDS: Final = 300.0  # for the checkpoint that a stop leaves; releasing takes seconds
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """The process was asked to stop.

    Not an `Exception`, so that nothing on the way swallows it; and a `KeyboardInterrupt`, the one kind that
    compiled code of Ray passes on when a handler raises it during a wait.
    """

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; the same command goes on from the last finished stage or shard")
        self.exit_code = 128 + number


@dataclass(slots=True)
class _Watch:
    """What is known of the signals of this process."""

    first: int | None = None
    heard: bool = False  # the handler has raised
    is_over: bool = False  # the stop was the ordinary end of a command
    children: list[Any] = field(default_factory=list)  # psutil's processes at the first signal
    started: bool = False


_watch = _Watch()


def stop_behind(error: BaseException | None) -> Stopped | None:
    """The stop that `error` came from: libraries wrap it, or raise an interruption of their own for it."""
    at = error
    while at is not None and not isinstance(at, Stopped):
        at = at.__cause__ or at.__context__
    if at is None and _watch.first is not None and not _watch.is_over:
        return Stopped(_watch.first)
    return at


def stop_is_the_end() -> None:
    """The stop that came was the ordinary end of a command that waits for one, and everything is released:
    the process ends with code 0, and no more is made of the stop."""
    _watch.is_over = True


def raise_on_stop_signals() -> None:
    """Turn the first SIGTERM or SIGINT into `Stopped`; a second one ends the process at once."""
    _start_watching()
    for number in _STOPS:
        signal.signal(number, _stop)


def end_children() -> None:
    """End by force what this process has started and what is still there: the last step after a stop."""
    if _watch.first is None:
        return
    import psutil

    _watch.children += _children()
    for child in _watch.children:
        with contextlib.suppress(psutil.Error):  # ended, or another process that has its number now
            child.kill()


def _stop(number: int, frame: FrameType | None) -> None:
    if _watch.heard:
        return  # things are being released; the watching thread counts the repeats
    _watch.heard = True
    _watch.first = _watch.first or number
    raise Stopped(number)


def _start_watching() -> None:
    if _watch.started:
        return
    _watch.started = True
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_read_signals, args=(reading,), name="stop signals", daemon=True).start()


def _read_signals(reading: int) -> None:
    first_at = 0.0
    while True:
        left = None
        if first_at:
            limit = RELEASE_SECONDS if _watch.heard else HEARD_SECONDS
            left = max(0.0, first_at + limit - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            _end_now("did not end in time after")
        for number in os.read(reading, 64):
            if number not in _STOPS:
                continue
            if not first_at:
                first_at = time.monotonic()
                _watch.first = _watch.first or number
                _watch.children = _children()
            elif time.monotonic() - first_at > REPEAT_SECONDS:
                _end_now("ended at once by a second")


def _children() -> list[Any]:
    # Imported here, and not when the thread begins: a process that ends meanwhile, such as one that refuses
    # its arguments, would crash in an import that is under way.
    import psutil

    try:
        return list(psutil.Process().children(recursive=True))
    except psutil.Error:
        return []


def _end_now(how: str) -> None:
    number = _watch.first or signal.SIGTERM
    end_children()
    os.write(2, f"error: {how} {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)
