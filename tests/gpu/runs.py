"""The whole loop, by the commands that a user gives."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.gpu.checks import RUNS, TURNS
from tests.gpu.outcome import Unmet

SMALL = ('tracking.uri="none"', "data.tasks_per_iteration=2", "evaluate.tasks=4")
LARGEST_GAP = 0.1  # nats, mean over tokens


def iteration(name: str, overrides: Sequence[str] = ()) -> str:
    """One iteration of the team that ships."""
    with tempfile.TemporaryDirectory() as root:
        _command("run", "iteration", root, (*RUNS[name], *overrides))
        return _updates(root, 1)


def train(overrides: Sequence[str] = TURNS) -> str:
    """An iteration with an evaluation, and another that goes on from its checkpoint in a new process."""
    with tempfile.TemporaryDirectory() as root:
        _command("run", "train", root, (*overrides, "evaluate.every=1"), "--iterations", "1")
        _command("run", "train", root, (*overrides, "evaluate.every=1"), "--iterations", "2")
        return _updates(root, 2)


def arguments(root: str, overrides: Sequence[str]) -> list[str]:
    """The settings of a small run under this root, as the command line takes them."""
    return [f"--set={each}" for each in (*SMALL, f'run.root="{root}"', 'run.name="gpu"', *overrides)]


def _command(group: str, verb: str, root: str, overrides: Sequence[str], *more: str) -> None:
    command = [sys.executable, "-m", "pipeline", group, verb, *arguments(root, overrides), *more]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unmet(f"exit code {done.returncode}: {words[-1] if words else 'no words'}")


def _updates(root: str, version: int) -> str:
    """Versions and gaps of the newest updates of a run."""
    from pipeline.store.run import Run

    tables = Run(root, "gpu").iteration(version - 1).tables()[0]
    found = []
    for name in sorted(name for name in tables if name.startswith("updates/")):
        row = next(row for row in tables[name].read().to_pylist() if row["kind"] == "summary")
        gap = row["sampler_gap_mean"]
        found.append((name.removeprefix("updates/"), row["version_after"], math.inf if gap is None else gap))
    words = ", ".join(f"{model} at version {at}, gap {gap:.3g}" for model, at, gap in found)
    if not found or any(
        at != version or not math.isfinite(gap) or abs(gap) > LARGEST_GAP for _, at, gap in found
    ):
        raise Unmet(words or "no update")
    return words
