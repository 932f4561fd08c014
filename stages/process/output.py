"""What a process and its children write while something starts: kept, so that a failure can quote it.

A library may start a process of its own, and say only that it failed; why stands in what that process wrote.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_CAUSE: Final = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)): (\S.*)")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LINES: Final = 3
_ON_ITS_WAY_SECONDS: Final = 0.2
_CHARACTERS: Final = 600
_KEPT_BYTES: Final = 1 << 16  # the end of a long log


class Output:
    """The last 64 KiB of what was written."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, written: bytes) -> None:
        self._kept = (self._kept + written)[-_KEPT_BYTES:]

    def read(self) -> str:
        """What was written up to now, after a moment for what is on its way."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_ON_ITS_WAY_SECONDS)
        return self._kept.decode("utf-8", "replace")


@contextmanager
def kept_output() -> Iterator[Output]:
    """Pass on what this process, and children that start now, write to standard output and error, and keep
    its end. It is passed on to standard error, for children also after the block.
    """
    output = Output()
    reading, writing = os.pipe()
    before = [os.dup(1), os.dup(2)]
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(2), output), daemon=True)
    passing.start()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for number in (1, 2):
            os.dup2(writing, number)
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(writing)  # the thread ends when no child has the pipe any more


def _pass_on(reading: int, to: int, output: Output) -> None:
    while written := os.read(reading, 1 << 16):
        output.add(written)
        os.write(to, written)
    os.close(reading)
    os.close(to)


def last_words(text: str, besides: str = "") -> str:
    """Why something failed, from its output: the last error in it but `besides`, or else the last lines."""
    lines = [_COLOURS.sub("", line).strip() for line in text.splitlines()]
    causes = [f"{m[1]}: {m[2]}" for line in lines if (m := _CAUSE.search(line))]
    others = [cause for cause in causes if besides not in cause] if besides else causes
    if others:
        return others[-1][:_CHARACTERS]
    return " / ".join([line for line in lines if line][-_LINES:])[:_CHARACTERS]
