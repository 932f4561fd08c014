"""A peer in a process of its own: asked by one line of JSON, answers by one.

The side that is not being timed must not disturb the other, so what a peer does between two answers
is measured as well (`cpu_seconds`) and printed with the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
# Ray runs its workers, so our engines and trainers, at this priority; a peer that had a better one
# would win whenever something else runs on the machine.
NICENESS = int(os.environ.get("RAY_worker_niceness", "15"))  # noqa: SIM112  Ray spells it so  # noqa: SIM112 (Ray spells it so)


class PeerDied(RuntimeError):
    """The peer ended without an answer; the message has the end of what it wrote to stderr."""


class Peer:
    """A running peer module, `python -m MODULE`, whose first answer says that it is ready."""

    def __init__(
        self, module: str, arguments: dict[str, Any], log: Path, paths: tuple[Path, ...] = ()
    ) -> None:
        self._module, self._log = module, log
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, *paths))),
            "OMP_NUM_THREADS": str(cores()),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd=REPOSITORY,
                text=True,
                preexec_fn=lambda: os.nice(NICENESS),
            )
        self.ready = self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            PeerDied: it ended instead of answering.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Close its input, which ends it; by force if it takes long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            words = self._log.read_text(errors="replace").strip().splitlines()[-12:]
            raise PeerDied(f"{self._module} ended without an answer:\n" + "\n".join(words))
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def peer(module: str, arguments: dict[str, Any], log: Path, paths: tuple[Path, ...] = ()) -> Iterator[Peer]:
    """A peer that ends with the block."""
    running = Peer(module, arguments, log, paths)
    try:
        yield running
    finally:
        running.close()


def serve(prepare: Callable[[dict[str, Any]], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """The inside of a peer: `prepare(arguments)` gives what answers a request. Ends with the input.

    The peer's own prints go to stderr, so that nothing mixes with the answers.
    """
    answers = claim_stdout()
    handle = prepare(json.loads(sys.argv[1]))
    answers({"ready": True})
    for line in sys.stdin:
        answers(handle(json.loads(line)))


def claim_stdout() -> Callable[[dict[str, Any]], None]:
    """A writer to what is stdout now; from then on prints, of native code too, go to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    return write


def cores() -> int:
    """Cores that this process may use: the threads of either side."""
    return len(os.sched_getaffinity(0))


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that these processes have used since they started; one that has ended counts nothing."""
    import psutil

    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def peak_memory(pid: int) -> int:
    """The most bytes that a process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def own_processes(but: int | None = None) -> list[int]:
    """This process and everything that it started, Ray's processes too, but for that of one peer."""
    import psutil

    me = psutil.Process()
    return [process.pid for process in (me, *me.children(recursive=True)) if process.pid != but]


class Noise:
    """Cores that everything else on the machine uses while a `with` block runs: what spoils a measurement."""

    def __enter__(self) -> Noise:
        self._before = self._sample()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed, busy, own = (b - a for a, b in zip(self._before, self._sample(), strict=True))
        self.cores = max(0.0, busy - own) / elapsed

    def _sample(self) -> tuple[float, float, float]:
        import psutil

        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return time.monotonic(), busy - times.guest - times.guest_nice, cpu_seconds(own_processes())
