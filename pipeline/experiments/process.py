"""One run of a sweep in a process of its own: all memory comes back when it ends, however it ends."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pipeline.settings.reading import settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.folder import Folder
from pipeline.store.lock import STALE_SECONDS, wait_until_free
from pipeline.store.run import Run

WATCH_SECONDS: Final = 1.0
STOP_SECONDS: Final = 120.0  # for a run to write its checkpoints and to release engines and trainers
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


Progress = Callable[[int], None]  # called with the number of finished iterations when it has changed
Train = Callable[[Settings, int, Folder, Progress], str | None]  # as `train_apart`


def train_apart(settings: Settings, iterations: int, logs: Folder, on_progress: Progress) -> str | None:
    """`run train` with these settings until the run has so many iterations; None, or why it failed.

    Where a sweep was killed, the process of its run has a signal to stop and may not have ended yet: it is
    waited for.

    Args:
        logs: where the log `<run>.log` goes.
        on_progress: called with the number of finished iterations.
    """
    run = settings.run
    if (stored := Run(run.root, run.name)).exists:
        wait_until_free(stored.folder, STOP_SECONDS + STALE_SECONDS)
    with tempfile.TemporaryDirectory(prefix="cadre-sweep-") as temporary:
        file = Path(temporary) / "settings.toml"
        file.write_text(settings_toml(settings), "utf-8")
        log = Path(logs.path if logs.is_local else temporary) / f"{run.name}.log"
        command = ["run", "train", "--iterations", str(iterations), "--config", str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_ends_with_us(), sys.executable, "-m", "pipeline", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                _watch(process, run.root, run.name, on_progress)
            finally:
                _stop(process)
        text = log.read_text("utf-8", errors="replace")
        if not logs.is_local:
            logs.write_text(log.name, text)
    return None if process.returncode == 0 else cause_of(process.returncode, text)


def cause_of(code: int, log: str) -> str:
    """One line that says why a process ended with `code`: its own error, or the signal that ended it."""
    if code < 0:
        word = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", most often because memory ran out" if -code == signal.SIGKILL else ""
        return f"ended by {word}{hint}"
    lines = [_ANSI.sub("", line).strip() for line in log.splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    said = errors or [line for line in lines if line] or ["it said nothing"]
    return said[-1]


def _watch(
    process: subprocess.Popen[bytes], root: str, name: str, on_progress: Callable[[int], None]
) -> None:
    """Wait for the end. Iterations finish in order, so only the next one is looked for."""
    run, seen = Run(root, name), 0
    while True:
        try:
            process.wait(WATCH_SECONDS)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        before = seen
        while run.is_finished(seen):
            seen += 1
        if seen != before:
            on_progress(seen)
        if ended:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that is still there: kindly, and for good if that takes too long."""
    if process.poll() is not None:
        return
    process.terminate()
    give_up = time.monotonic() + STOP_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
        process.wait()


def _ends_with_us() -> list[str]:
    """A prefix that ends a command when this process is killed, where util-linux has it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
