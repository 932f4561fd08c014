"""Checks of a GPU machine, one after another in processes of their own, and what came of each."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

STATES: Final = ("ok", "FAILED", "not run", "not built")
SECONDS: Final = 600.0  # of all checks together
LEAST: Final = 15.0  # seconds that must be left for a check to begin
NO_ANSWER: Final = "no answer within {seconds:.0f} s"


class Unmet(Exception):
    """A check found something else than it expects; the message says what."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `use` is `module:function` under tests.gpu, called with `arguments`; what it returns is what
    was found, and it raises `Unmet` where that is not what is expected."""

    name: str
    expected: str
    use: str
    devices: int = 1  # GPUs that it needs
    seconds: float = 60.0  # after which it is ended
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    state: str
    expected: str
    found: str
    seconds: float = 0.0

    def line(self) -> str:
        took = f" ({self.seconds:.0f} s)" if self.seconds else ""
        lines = (f"{self.state:<9} {self.name}{took}", f"expected {self.expected}", f"found    {self.found}")
        return f"\n{' ' * 10}".join(lines)


def run_all(
    checks: Sequence[Check],
    devices: int,
    tell: Callable[[Outcome], None],
    budget: float = SECONDS,
    run: Callable[[Check, float], Outcome] | None = None,
) -> list[Outcome]:
    """Run each check that this machine has the GPUs and the time for; a failure ends none of the others.

    Args:
        devices: GPUs of this machine.
        tell: called with each outcome as it comes.
        budget: seconds of all of them.
        run: runs one check within so many seconds; by default in a process of its own.
    """
    began, outcomes = time.monotonic(), []
    for check in checks:
        left = budget - (time.monotonic() - began)
        if check.devices > devices:
            why = f"not run: it needs {check.devices} GPUs, this machine has {devices}"
            outcome = Outcome(check.name, "not run", check.expected, why)
        elif left < LEAST:
            why = f"not run: {max(left, 0):.0f} s of {budget:.0f} are left"
            outcome = Outcome(check.name, "not run", check.expected, why)
        else:
            seconds = min(check.seconds, left)
            outcome = (run or in_a_process)(check, seconds)
            if outcome.state == "FAILED" and outcome.seconds >= seconds < check.seconds:
                why = f"cut off after {seconds:.0f} s: the {budget:.0f} s of all checks are over"
                outcome = replace(outcome, state="not run", found=why)
        outcomes.append(outcome)
        tell(outcome)
    return outcomes


def in_a_process(check: Check, seconds: float) -> Outcome:
    """Run a check in a process of its own, which has the devices for itself and may die."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.gpu", "--one", json.dumps([check.use, dict(check.arguments)])]

    def outcome(state: str, found: str) -> Outcome:
        return Outcome(check.name, state, check.expected, found, time.monotonic() - began)

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return outcome("FAILED", NO_ANSWER.format(seconds=seconds))
    lines = out.strip().splitlines()
    if process.returncode == 0 and lines:
        return outcome("ok", lines[-1])
    words = (err.strip() or out.strip() or "it said nothing").splitlines()
    return outcome("FAILED", f"{words[-1]} (exit code {process.returncode})")


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and what it has started: all of its own session."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def one(text: str) -> str:
    """What a check finds, in this process; `text` is its function and arguments, as JSON."""
    use, arguments = json.loads(text)
    module, _, name = use.partition(":")
    return str(getattr(importlib.import_module(f"tests.gpu.{module}"), name)(**arguments))


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 where every check was ok, 1 where one failed, 3 where none failed and one did not run."""
    states = {outcome.state for outcome in outcomes}
    return 1 if "FAILED" in states else 3 if "not run" in states or "ok" not in states else 0
