"""A process and its descendants, as `/proc` tells: what they use, whether one is awake, how to end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from workflows.processes import started, stat

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MOST_PROCESSES: Final = 5000  # looked at in one go
_RUNNING: Final = "R"  # or waiting for a core
_WAITING: Final = "D"  # for a disk; or, after vfork, for a child that may sleep as long as it likes


@dataclass(frozen=True, slots=True)
class Look:
    """A tree at one moment. CPU time includes that of its processes that have ended and been waited for."""

    cpu_seconds: float
    memory: int  # resident bytes, shared pages counted for each
    threads: int
    awake: bool  # one of them runs, or would if there were a core
    waiting: bool  # none runs, and one waits for a disk


def look_at(pid: int) -> Look:
    """What the process and all its descendants use now."""
    ticks, pages, threads = 0, 0, 0
    awake = waiting = False
    for one in descendants(pid):
        fields = stat(f"/proc/{one}/stat")
        if fields is None:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        pages += max(0, int(fields[21]))
        count = int(fields[17])
        threads += count
        states = {fields[0]} if count <= 1 else {fields[0], *_thread_states(one)}
        awake = awake or _RUNNING in states
        waiting = waiting or _WAITING in states
    return Look(ticks / _TICKS_PER_SECOND, pages * _PAGE_BYTES, threads, awake, waiting and not awake)


def descendants(pid: int) -> Iterator[int]:
    """The process itself, then those below it."""
    waiting, seen = [pid], 0
    while waiting and seen < _MOST_PROCESSES:
        one = waiting.pop()
        seen += 1
        yield one
        waiting += children(one)


def children(pid: int) -> list[int]:
    """The processes that a process started and that have not been reaped."""
    pids: list[int] = []
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
        except OSError:  # it has ended
            continue
    return pids


def kill_descendants(pid: int, seconds: float = 10.0) -> None:
    """End all processes below `pid`, those that are made meanwhile too, for as long as that takes.

    Orphans stay below `pid` where it is a subreaper that waits for them.
    """
    until = time.monotonic() + seconds
    while below := children(pid):
        tree = [one for child in below for one in descendants(child)]
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # what is stopped makes no more of them
            for one in tree:
                send(one, signum)
        if all(started(one) is None for one in tree) or time.monotonic() > until:
            return
        time.sleep(0.002)


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _thread_states(pid: int) -> set[str]:
    stats = (stat(f"/proc/{pid}/task/{thread}/stat") for thread in _threads(pid))
    return {fields[0] for fields in stats if fields is not None}
