"""What a program may use, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Killed = Literal["cpu", "memory", "output", "idle", "processes", "backstop", "cancelled"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. Sizes are in bytes."""

    cpu_seconds: float = 4.0
    memory: int = 1 << 30
    output: int = 4 << 20  # of each of stdout, stderr and an answer
    processes: int = 32  # threads are counted too
    open_files: int = 64
    file_size: int = 32 << 20
    idle_seconds: float = 10.0
    backstop_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class End:
    """How a program ended.

    `killed` is why we ended it, None if it ended by itself; then `exit_code` or `signal` is set, of the
    program that was asked nothing or left without an answer. `finished` says that its interpreter came to
    its normal end, `out_of_memory` that a MemoryError ended it, `thread_out_of_memory` that one ended a
    thread. `started` is False where the sandbox itself failed. `answer` is the line that the keeper reported
    of a call or a test.
    """

    started: bool
    killed: Killed | None
    exit_code: int | None
    signal: int | None
    finished: bool
    out_of_memory: bool
    thread_out_of_memory: bool
    cpu_seconds: float
    stdout: bytes
    stderr: bytes  # the last 8 KiB
    answer: str | None = None
