"""A stop by a signal is told as one sentence, whatever wrapped it on its way out."""

from __future__ import annotations

import signal

import pytest

from pipeline.cli import app as cli
from pipeline.run.signals import Stopped, stop_behind


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
