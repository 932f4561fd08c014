"""A program under way: its pipes served, its limits kept.

**What a limit is measured by.** CPU time is that of all processes of a program together, as the kernel
counts it; memory is the address space of each process, and their resident memory together. Neither
depends on what else the machine does. Wall time decides one thing: a program of which every thread
sleeps each time that it is looked at, for `idle_seconds` in sum. A thread that waits for a core is not
asleep, and a look counts for a tenth of a second at most, however late it comes. A thread that waits for a
disk counts as asleep for a quarter of the time: a parent after vfork looks the same. The backstop ends what
a starved machine does not get done; that is the machine's failure, not the program's.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from workflows.tools.code.isolation import Isolation
from workflows.tools.code.limits import End, Killed, Limits
from workflows.tools.code.process import Program
from workflows.tools.code.tree import Look, look_at

TICK_SECONDS: Final = 0.1
_DISK_SHARE: Final = 4


def run(
    isolation: Isolation,
    job: Mapping[str, Any],
    limits: Limits,
    *,
    asks: Mapping[str, Any] | None = None,
    stdin: bytes = b"",
    cancelled: threading.Event | None = None,
) -> End:
    """Run a program to its end, or to the end of its limits. Arguments as of `Program`."""
    program = Program(isolation, job, limits, asks=asks, stdin=stdin)
    try:
        watch = _Watch(program, cancelled)
        while not watch.saw_the_end():
            pass
    except BaseException:
        program.kill("cancelled")
        raise
    finally:
        end = program.finish()
    return end


class _Watch:
    """Waits for a program's pipes, and looks at its use of the machine every tick."""

    def __init__(self, program: Program, cancelled: threading.Event | None) -> None:
        self._program = program
        self._cancelled = cancelled
        self._started = self._looked = time.monotonic()
        self._idle_seconds = 0.0

    def saw_the_end(self) -> bool:
        """Serve what is ready, or wait for it until the next tick. True when the program is gone."""
        poll = select.poll()
        for fd, events in self._program.descriptors().items():
            poll.register(fd, events)
        left = self._looked + TICK_SECONDS - time.monotonic()
        ready = [fd for fd, _ in poll.poll(max(0, int(left * 1000) + 1))]
        for fd in ready:
            self._program.move(fd)
        # late, but not before all that was ready is served: who waits for us is not idle
        if time.monotonic() - self._looked >= TICK_SECONDS:
            self._look()
        return self._program.exit_fd in ready

    def _look(self) -> None:
        now = time.monotonic()
        elapsed, self._looked = now - self._looked, now
        look = look_at(self._program.pid)
        if not look.awake:
            self._idle_seconds += min(elapsed, TICK_SECONDS) / (_DISK_SHARE if look.waiting else 1)
        if why := self._exceeded(self._program.limits, look, now):
            self._program.kill(why)

    def _exceeded(self, limits: Limits, look: Look, now: float) -> Killed | None:
        if self._cancelled is not None and self._cancelled.is_set():
            return "cancelled"
        if look.cpu_seconds > limits.cpu_seconds + _START_SECONDS:
            return "cpu"
        if look.memory > limits.memory + _START_BYTES:
            return "memory"
        if look.threads > limits.processes + _START_THREADS:
            return "processes"
        if self._idle_seconds > limits.idle_seconds:
            return "idle"
        if now - self._started > limits.backstop_seconds:
            return "backstop"
        return None


# What bubblewrap and the supervisor use themselves, generously: the exact sums are drawn up at the end.
_START_SECONDS: Final = 0.25
_START_BYTES: Final = 64 << 20
_START_THREADS: Final = 4
