"""An engine in two replicas, of which one is killed in mid-rollout: no turn is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from stages.base import Quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

HERE = "tests.support.dying_engines"
TIMES = ("queued_at", "started_at", "first_token_at", "ended_at", "num_cached_tokens")

Settings = Callable[..., dict[str, Any]]


class Saying(Quiet):
    """A progress that keeps what it is told for people."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def played(raw: dict[str, Any], iterations: int = 1) -> tuple[list[Finished], list[str], list[int]]:
    """The iterations, what was said, and the ids of the engines' processes at the end."""
    saying = Saying()
    with session(assemble(parse_settings(raw)), saying, signals=False) as runner:
        done = [runner.run_iteration() for _ in range(iterations)]
        processes = list(runner.fleet.engines.processes("team").values())
    return done, saying.lines, [process for process in processes if process]


def turns_of(done: Finished) -> pl.DataFrame:
    return pl.DataFrame(done.tables["turns"].read()).drop(TIMES).sort("episode_id", "turn_index")


def total(metrics: Mapping[str, float], name: str) -> float:
    return sum(metrics[f"replica/team.{number}/{name}"] for number in (1, 2))


def test_a_killed_replica_costs_no_turn_and_comes_back(scripted: Settings, tmp_path: Path) -> None:
    team = {"engine": f"{HERE}:DyingScript", "engine_options": {"marks": str(tmp_path)}}
    done, lines, processes = played(scripted(models={"team": {**team, "replicas": 2}}), 2)
    killed = int((tmp_path / "killed").read_text())
    assert killed not in processes
    left = [psutil.Process(pid) for pid in processes if psutil.pid_exists(pid)]
    assert psutil.wait_procs(left, timeout=30)[1] == []
    assert any("died; new start 1 of at most 3" in line for line in lines)
    assert total(done[0].metrics, "asked_again") >= 1
    assert sum(total(each.metrics, "restarts") for each in done) == 1
    for version, each in enumerate(done):
        assert each.metrics["rollout/episodes"] == each.metrics["rollout/status/ok"] == 16
        turns = turns_of(each).filter(pl.col("event") == "llm")
        assert total(each.metrics, "calls") == turns.height  # each is answered once
        assert set(turns["policy_version"]) == {version}


@pytest.mark.long
def test_with_the_torch_engine_all_rows_are_those_of_one_replica(scripted: Settings, tmp_path: Path) -> None:
    team = {
        "engine": f"{HERE}:DyingTorch",
        "engine_options": {"marks": str(tmp_path)},
        "checkpoint": "tiny",
        "dtype": "float32",
        "max_batch_size": 1,  # rows of one batch differ in the last bits from those of another
        "kv_cache_gib": 0.1,
    }
    roles = {role: {"max_response_tokens": 8} for role in ("decomposer", "reader", "answerer")}
    few = {"roles": roles, "data": {"tasks_per_iteration": 2}, "rollout": {"group_size": 2}}
    (broken,), lines, _ = played(scripted(models={"team": {**team, "replicas": 2}}, **few))
    assert (tmp_path / "killed").exists()
    assert any("died; new start 1" in line for line in lines)
    (unbroken,), _, _ = played(scripted(run={"name": "alone"}, models={"team": team}, **few))
    assert turns_of(broken).equals(turns_of(unbroken))
