"""Killed at any point, the same command finishes the run, with the tables of an unbroken one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import ray
import tomlkit

from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from stages.base import Quiet

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDERS = ("tasks", "rollout", "rewards", "credit", "partition", "updates/team")
EVERY = [f"{folder}/{mark}.json" for folder in FOLDERS for mark in ("begun", "manifest")]
EVERY.insert(3, "rollout/shards/00000.json")
# with a part of the plays, inside a stage of Ray Data, between two stages, inside an update, after it
FEW = [EVERY[3], "rewards/begun.json", "credit/manifest.json", *EVERY[-2:]]
TIMES = ("queued_at", "started_at", "first_token_at", "ended_at", "seconds", "uri")

Settings = Callable[..., dict[str, Any]]


def joining(argv: list[str]) -> list[str]:
    """The command on the Ray of this process instead of one of its own, whose start takes seconds."""
    return [*argv, "--set", f'cluster.address="{ray.get_runtime_context().gcs_address}"']


def command(raw: dict[str, Any], tmp_path: Path) -> list[str]:
    config = tmp_path / f"{raw['run']['name']}.toml"
    config.write_text(tomlkit.dumps(raw))
    return [sys.executable, "-m", "pipeline", "run", "iteration", "--config", str(config)]


def start(argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=out)


def finish(argv: list[str], log: Path) -> None:
    code = start(argv, log).wait(timeout=300)
    assert code == 0, log.read_text()[-3000:]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.01)


def tables(root: str, name: str, index: int = 0) -> dict[str, pl.DataFrame]:
    found, _ = Run(root, name).iteration(index).tables()
    out = {}
    for table, ref in found.items():
        frame = pl.DataFrame(ref.read())
        frame = frame.drop([c for c in TIMES if c in frame.columns])
        keys = [c for c in ("task_id", "episode_id", "turn_index", "kind", "step") if c in frame.columns]
        out[table] = frame.sort(keys, nulls_last=True)
    return out


def weights_hash(root: str, name: str) -> str:
    manifest = json.loads((Path(root) / name / "checkpoints/team/00001/manifest.json").read_text())
    assert manifest["hash"]
    return str(manifest["hash"])


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("points", [FEW, pytest.param(EVERY, marks=pytest.mark.long)], ids=["few", "every"])
def test_kill_9_inside_and_after_stages_loses_nothing(
    points: Sequence[str], scripted: Settings, tmp_path: Path
) -> None:
    broken, whole = scripted(run={"name": "broken"}), scripted(run={"name": "whole"})
    root = broken["run"]["root"]
    iteration = Path(root) / "broken/iterations/00000"
    log = tmp_path / "log"
    argv = command(broken, tmp_path)
    for number, point in enumerate(iteration / name for name in points):
        if point.exists():
            continue  # one kill often falls behind the next point as well
        process = start(argv if number == 0 or points is EVERY else joining(argv), log)
        wait_for(point.exists, process)
        process.kill()
        process.wait()
    finish(joining(argv), log)
    with session(assemble(parse_settings(whole)), Quiet(), signals=False) as runner:
        runner.run_iteration()
    one, other = tables(root, "broken"), tables(root, "whole")
    assert one.keys() == other.keys()
    for name, frame in one.items():
        assert frame.equals(other[name]), name
    assert weights_hash(root, "broken") == weights_hash(root, "whole")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)],
)
def test_a_stop_signal_releases_everything_and_the_run_goes_on(
    number: signal.Signals, code: int, scripted: Settings, tmp_path: Path
) -> None:
    raw = scripted()
    argv, log = command(raw, tmp_path), tmp_path / "log"
    process = start(argv, log)
    begun = Path(raw["run"]["root"]) / "r/iterations/00000/rollout/begun.json"
    wait_for(begun.exists, process)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    assert process.wait(timeout=120) == code, log.read_text()[-3000:]
    assert "goes on from the last finished stage" in log.read_text()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], alive
    if number == signal.SIGTERM:  # once is enough: the folder is the same after either
        finish(joining(argv), log)
