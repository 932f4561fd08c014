"""Lines of text over two pipes, between the keeper and the program inside a sandbox (`box.py`)."""

from __future__ import annotations

import os

from workflows.tools.code.codec import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ProgramGone(BaseException):
    """The program's process ended before it answered."""


class TooLong(BaseException):
    """An answer is longer than the limit of output."""


class Lines:
    """Lines of text over two pipes; none longer than `longest` bytes is read, if that is given."""

    def __init__(self, in_fd: int, out_fd: int, longest: int | None = None) -> None:
        self.in_fd, self.out_fd, self.longest, self.rest = in_fd, out_fd, longest, b""

    def read(self) -> str | None:
        """The next line; None at the end."""
        parts = [self.rest]
        size = len(self.rest)
        while b"\n" not in parts[-1]:
            if self.longest is not None and size > self.longest:
                raise TooLong()
            chunk = os.read(self.in_fd, 1 << 16)
            if not chunk:
                return None
            parts.append(chunk)
            size += len(chunk)
        line, _, self.rest = b"".join(parts).partition(b"\n")
        return line.decode("ascii", "replace")

    def write(self, *values: Any) -> None:
        try:
            write_all(self.out_fd, encode(values).encode() + b"\n")
        except BrokenPipeError:
            raise ProgramGone() from None


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def message_of(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except BaseException:
        return ""
