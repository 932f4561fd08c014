"""A stop by a signal is told as one sentence, whatever wrapped it on its way out."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.cli import app as cli
from pipeline.run.signals import REPEAT_SECONDS, Stopped, stop_behind


def wrapped() -> SystemError:
    """As compiled code raises it that a signal's handler has interrupted."""
    try:
        raise SystemError("returned a result with an exception set") from Stopped(signal.SIGTERM)
    except SystemError as error:
        return error


def test_a_stop_is_found_behind_what_wrapped_it() -> None:
    assert isinstance(stop_behind(wrapped()), Stopped)
    assert stop_behind(SystemError("another one")) is None


@pytest.mark.parametrize(("error", "code"), [(Stopped(signal.SIGTERM), 143), (wrapped(), 143)])
def test_the_command_line_ends_with_the_signals_code_and_one_sentence(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "command_line", lambda: command)
    assert cli._guarded() == code
    said = capsys.readouterr().err
    assert said.startswith("error: stopped by SIGTERM")
    assert said.count("\n") == 1


RELEASING = """
import subprocess, sys, time
from pathlib import Path
from pipeline.run.signals import raise_on_stop_signals

mark = Path(sys.argv[1])
raise_on_stop_signals()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
try:
    mark.with_suffix(".waits").write_text(str(child.pid))
    time.sleep(3600)
finally:
    mark.with_suffix(".releases").write_text("")
    while True:  # what is released takes its time, and hears nothing
        try:
            time.sleep(3600)
        except BaseException:
            pass
"""


def releasing(tmp_path: Path) -> tuple[subprocess.Popen[bytes], Path, psutil.Process]:
    """A process that waits with a child of its own, ready for signals."""
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [sys.executable, "-c", RELEASING, str(mark)], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE
    )
    wait_for(mark.with_suffix(".waits"), process)
    return process, mark, psutil.Process(int(mark.with_suffix(".waits").read_text()))


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    while not (file.exists() and (file.suffix != ".waits" or file.read_text())):
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)],
)
def test_a_second_stop_ends_a_process_that_is_being_released_at_once(
    first: signal.Signals, second: signal.Signals, tmp_path: Path
) -> None:
    """The release would take an hour. The code is the first signal's, and what it had started is gone."""
    process, mark, child = releasing(tmp_path)
    process.send_signal(first)
    wait_for(mark.with_suffix(".releases"), process)
    time.sleep(REPEAT_SECONDS + 0.2)  # sooner, it would be one stop that was sent twice
    process.send_signal(second)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + first
    assert f"error: ended at once by a second {first.name}" in said.decode()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_one_stop_that_a_terminal_and_a_parent_both_send_lets_things_be_released(tmp_path: Path) -> None:
    process, mark, child = releasing(tmp_path)
    try:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        wait_for(mark.with_suffix(".releases"), process)
        assert process.poll() is None
        assert child.is_running()
    finally:
        child.kill()
        process.kill()
        process.communicate()
