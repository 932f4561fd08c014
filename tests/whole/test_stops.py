"""A stop by a signal ends a run wherever it waits, with the signal's code, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomlkit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Settings = Callable[..., dict[str, Any]]


def start(raw: dict[str, Any], tmp_path: Path, mark: Path) -> subprocess.Popen[bytes]:
    config = tmp_path / "stuck.toml"
    config.write_text(tomlkit.dumps(raw))
    with (tmp_path / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", "iteration", "--config", str(config)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, "STUCK_MARK": str(mark)},
        )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.02)


def check_end(process: subprocess.Popen[bytes], code: int, started: list[psutil.Process], log: Path) -> None:
    """The code, and that no process which it had started is left."""
    assert process.wait(timeout=60) == code, log.read_text()[-3000:]
    said = log.read_text()
    assert said.count("error: ") == 1, said[-3000:]
    assert "Traceback" not in said, said[-3000:]
    _, alive = psutil.wait_procs(started, timeout=15)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], alive


def stuck(where: str, mark: Path) -> dict[str, Any]:
    """Settings of a run that never gets beyond one of its waits."""
    if where == "player":
        return {"workflow": {"use": "tests.support.stuck:workflow", "options": {"mark": str(mark)}}}
    if where == "update":
        return {"ppo": {"loss": "tests.support.stuck:loss"}}
    engine = {"engine": "tests.support.stuck:Engine", "engine_options": {"stuck": where, "mark": str(mark)}}
    return {"models": {"team": engine}}


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("start", signal.SIGINT),
        ("player", signal.SIGTERM),
        pytest.param("generate", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("sleep", signal.SIGTERM, marks=pytest.mark.long),
        ("update", signal.SIGINT),
        ("reload", signal.SIGTERM),
    ],
)
def test_a_run_stops_wherever_it_waits(
    where: str, number: signal.Signals, scripted: Settings, tmp_path: Path
) -> None:
    mark, log = tmp_path / "mark", tmp_path / "log"
    process = start(scripted(**stuck(where, mark)), tmp_path, mark)
    wait_for(lambda: mark.exists() and bool(mark.read_text()), process, log)
    time.sleep(1.0)  # the driver is inside its wait by now
    started = psutil.Process(process.pid).children(recursive=True)
    assert int(mark.read_text()) in [p.pid for p in started]
    os.kill(process.pid, number)
    check_end(process, 128 + number, started, log)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        (1.0, signal.SIGTERM),
        (6.0, signal.SIGINT),
        pytest.param(1.0, signal.SIGINT, marks=pytest.mark.long),
        pytest.param(6.0, signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_an_early_stop_has_its_code_too(
    number: signal.Signals, seconds: float, scripted: Settings, tmp_path: Path
) -> None:
    """While packages are imported, and while Ray starts, which puts handlers of its own in place."""
    mark = tmp_path / "mark"
    process = start(scripted(**stuck("start", mark)), tmp_path, mark)
    time.sleep(seconds)
    started = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    check_end(process, 128 + number, started, tmp_path / "log")
