"""A few processes that compare expressions, started when needed, killed when over their limit.

Safe to call from any thread. Waiting for a free process counts against nobody's limit. The processes end
with this one: at its exit, and by themselves when their input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from workflows.errors import CadreError, InfraError, UsageError

CPU_SECONDS: Final = 5.0  # of one comparison
_WALL_SECONDS: Final = 120.0  # when even a busy machine must have given a process its CPU seconds
_START_SECONDS: Final = 120.0
_MOST_REQUESTS: Final = 5000  # then a fresh process: the caches of computer algebra grow
_PROGRAM: Final = str(Path(__file__).with_name("math_worker.py"))


class GradingError(CadreError):
    """A grader reached no verdict, which is not the same as a wrong answer."""


class _Worker:
    """One process. Not thread-safe; the pool lends it to one caller at a time."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._hung_up = False
        # without -P the folder of the program comes first, and its math.py hides Python's
        self._process = subprocess.Popen(
            [sys.executable, "-P", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # the same order of terms in every process
            start_new_session=True,  # a Ctrl-C is for the caller, who then ends this one
        )
        greeting = self._read(time.monotonic() + _START_SECONDS)
        if greeting is None or "ready" not in greeting:
            self.end()
            why = "the process ended at once" if greeting is None else greeting["error"]
            raise UsageError(f"math answers can't be compared: {why}; install math-verify 0.9")

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply, or None if there is none; then `end` says how the process ended."""
        self.num_requests += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read(time.monotonic() + _WALL_SECONDS)

    def _read(self, deadline: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        got = b""
        while not got.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                self._hung_up = True
                return None
            got += chunk
        reply: dict[str, Any] = json.loads(got)
        return reply

    def end(self) -> str:
        """End the process and leave no zombie. Says how it had ended: "over time", "crash", "killed"."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1 if self._hung_up else 0)
        over_time = self._process.poll() is None or self._process.returncode == -signal.SIGPROF
        outside = self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        return "over time" if over_time else "killed" if outside else "crash"


class Pool:
    """At most `size` processes, by default as many as there are cores, up to four."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or min(4, len(os.sched_getaffinity(0)))
        self._free = threading.Semaphore(self._size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    def compare(self, a: str, b: str, digits: int | None = None) -> tuple[bool, str]:
        """Whether two LaTeX expressions are equal, and why. See `math_worker`.

        Raises:
            GradingError: too large, too deep or too slow to evaluate.
            UsageError: math-verify is not installed.
            InfraError: the processes end without using their time.
        """
        request = {"a": a, "b": b, "digits": digits, "cpu_seconds": CPU_SECONDS}
        for _ in range(2):
            ended = ""
            with self._worker() as worker:
                reply = worker.ask(request)
                if reply is None:
                    worker.num_requests = _MOST_REQUESTS
                    ended = worker.end()
            if reply is not None and "error" in reply:
                raise GradingError(reply["error"])
            if reply is not None:
                return reply["equal"], reply["reason"]
            if ended == "over time":
                raise GradingError(f"not evaluated within {CPU_SECONDS:g} s of CPU time")
            if ended == "crash":
                raise GradingError("the process that evaluates expressions crashed on it")
        # ended from outside, for example for memory: that is nobody's answer
        raise InfraError("the process that evaluates expressions was killed, twice")

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            workers, self._idle = [*self._idle, *self._busy], []
            self._busy.clear()
        for worker in workers:
            worker.end()

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker()
            with self._lock:
                self._busy.add(worker)
            keep = False
            try:
                yield worker
                keep = worker.num_requests < _MOST_REQUESTS
            finally:
                with self._lock:
                    self._busy.discard(worker)
                    if keep:
                        self._idle.append(worker)
                if not keep:
                    worker.end()


_pool = Pool()


def compare(a: str, b: str, digits: int | None = None) -> tuple[bool, str]:
    """`Pool.compare` of this process's own pool."""
    return _pool.compare(a, b, digits)


def _fresh() -> None:
    global _pool
    _pool = Pool()  # a fork shares the pipes of its parent, and must not use them


os.register_at_fork(after_in_child=_fresh)
atexit.register(lambda: _pool.close())
