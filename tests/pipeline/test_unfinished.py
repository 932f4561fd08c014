"""What is there of an unfinished iteration can be looked at, and the newest finished one comes first."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.report.write import write_report
from pipeline.store.episodes import find_episode
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.stored import print_place
from pipeline.views.where import print_where
from stages.base import StageResult
from stages.tables.parquet import TableSink
from tests.pipeline.test_report import read
from tests.support.stored_runs import ROLLOUT, SAMPLE, Made, Shape, settings_of, write_iterations
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURN_KEYS, TURNS


def begin(run: Run, index: int, block: int = 0) -> None:
    """Two committed shards of three of iteration `index`: in the second of them the engine died."""
    tables = run.iteration(0).tables()[0]
    place = run.iteration(index).at(block)
    folder = place.folder
    sink = place.sinks(SAMPLE)["tasks"]
    rows = tables["tasks"].read_part(0).to_pylist()[:1]
    shards = (0, 2)
    tasks = [
        sink.write_part(shard, pa.Table.from_pylist([{**rows[0], "task_id": f"t{shard}"}], TASKS))
        for shard in range(3)
    ]
    place.commit(SAMPLE, StageResult({"tasks": tasks}), {}, {}, 0.0)  # type: ignore[arg-type]
    for shard, status in zip(shards, ("ok", "infra_error"), strict=True):
        parts = {}
        for name, schema in (("turns", TURNS), ("episodes", EPISODES)):
            rows = tables[name].read_part(0).to_pylist()
            for row in rows:
                head = f"{index:05d}.{block}" if block else f"{index:05d}"
                row |= {"episode_id": f"{head}/t{shard}/{row['sample']}", "status": status}
                row |= {"task_id": f"t{shard}", "block": block}
                row |= {"error": "engine died"} if status != "ok" and name == "episodes" else {}
            sink = TableSink(name, f"{folder.url}/rollout/{name}", schema)
            parts[name] = sink.write_part(shard, pa.Table.from_pylist(rows, schema)).as_dict()
        folder.write_text(f"rollout/shards/{shard:05d}.json", json.dumps({"index": shard, "parts": parts}))
    folder.write_text("rollout/begun.json", "{}")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run, _ = write_iterations(
        settings_of(str(tmp_path / "elsewhere")), Shape(turns=50, group_size=2, tasks_per_part=2)
    )
    run.iteration(0).folder.write_text("done.json", "{}")
    begin(run, 1)
    return run


def shown(run: Run, capsys: Any, **options: Any) -> str:
    print_place(shelf_of(run), **{"index": None, "episode": None, "episodes": 0, "full": False} | options,
                as_json=False)  # fmt: skip
    return " ".join(capsys.readouterr().out.split())


def test_the_newest_finished_iteration_is_shown_and_how_to_see_the_one_that_has_begun(
    run: Run, capsys: Any
) -> None:
    out = shown(run, capsys)
    assert "iteration 0 of run" in out
    assert "iteration 1 has begun and is unfinished; what there is of it:" in out
    command = shelf_of(run).command("--iteration", "1")
    assert shlex.split(command)[-4:] == ["show", run.folder.url, "--iteration", "1"]  # not under ./runs
    assert "has begun" not in shown(run, capsys, index=0)


def test_plays_of_an_unfinished_rollout_are_shown_with_why_they_failed(run: Run, capsys: Any) -> None:
    out = shown(run, capsys, index=1, episodes=1)
    assert "this iteration is unfinished" in out
    assert "of its unfinished rollout," in out
    assert "infra_error" in out
    assert "engine died (as in 00001/t2/" in out
    out = shown(run, capsys, episode="00001/t2/0")
    assert "iteration 1 is unfinished" in out
    assert "engine died" in out
    # reading for anything but looking sees finished stages alone
    assert "turns" not in Finished.read(run.iteration(1)).tables


def test_conditions_reach_them_and_the_hint_names_what_is_looked_at(run: Run, capsys: Any) -> None:
    print_where(shelf_of(run), 1, "status = 'infra_error'", limit=1, full=False, as_json=False)
    out = " ".join(capsys.readouterr().out.replace("\n", " ").split())
    assert "of iteration 1, which is unfinished, of run" in out
    assert f"show {run.folder.url} --episode 00001/t2/" in out


def test_the_report_has_them_too(run: Run) -> None:
    data, _ = read(write_report(run))
    assert any("of its unfinished rollout" in note for note in data["about"]["places"][1]["notes"])
    assert "00001/t2/0" in {episode["episode_id"] for episode in data["episodes"]}


def test_a_play_of_an_unfinished_rollout_stands_beside_its_own_task(run: Run) -> None:
    """Shards are committed in any order: a part of plays has the tasks of its shard."""
    place = Finished.read(run.iteration(1), begun=True)
    played = find_episode(place.tables, "00001/t2/0")
    assert played is not None
    assert played.task is not None
    assert played.task["task_id"] == "t2"


def write_rewards(run: Run) -> None:
    """Rewards of 1 for the turns of iteration 0."""
    place = run.iteration(0)
    stage = Made("reward", "rewards", {"rewards": REWARDS}, {"rewards": ""})
    turns, sink = place.tables()[0]["turns"], place.sinks(stage)["rewards"]  # type: ignore[arg-type]
    parts = []
    for index in range(len(turns.parts)):
        keys = turns.read_part(index, TURN_KEYS).to_pylist()
        rows = [{**dict.fromkeys(REWARDS.names), **key, "reward": 1.0, "reward_parts": []} for key in keys]
        parts.append(sink.write_part(index, pa.Table.from_pylist(rows, REWARDS)))
    place.commit(stage, StageResult({"rewards": parts}), {}, {}, 0.0)  # type: ignore[arg-type]


@pytest.fixture
def two_blocks(run: Run) -> Run:
    """Iteration 0 has a second block whose rollout has begun; its first block is rewarded."""
    write_rewards(run)
    (Path(run.folder.path) / "iterations/00000/done.json").unlink()
    begin(run, 0, block=1)
    return run


def test_plays_of_a_later_block_are_shown_behind_those_of_finished_ones(two_blocks: Run, capsys: Any) -> None:
    first = two_blocks.iteration(0).tables()[0]["episodes"].rows
    out = shown(two_blocks, capsys, index=0, episodes=0)
    assert "of its unfinished rollout," in out
    assert "infra_error" in out
    assert "engine died" in shown(two_blocks, capsys, episode="00000.1/t2/0")
    place = Finished.read(two_blocks.iteration(0), begun=True)
    assert place.tables["episodes"].rows > first
    assert place.measured["episodes"].rows == first  # metrics are of what has rewards
    assert len(place.begun["episodes"].parts) == 2
    data, _ = read(write_report(two_blocks))
    assert {"00000/t0000-00/0", "00000.1/t2/0"} <= {episode["episode_id"] for episode in data["episodes"]}


def test_plays_of_a_later_block_whose_reward_failed_are_shown(two_blocks: Run, capsys: Any) -> None:
    """The rollout is finished, and what comes after it is not."""
    place = two_blocks.iteration(0).at(1)
    parts = {name: list(table.parts) for name, table in place.begun_tables().items() if name != "tasks"}
    place.commit(ROLLOUT, StageResult(parts), {}, {}, 0.0)  # type: ignore[arg-type]
    assert "engine died" in shown(two_blocks, capsys, episode="00000.1/t2/0")
    print_where(shelf_of(two_blocks), 0, "status = 'infra_error'", limit=1, full=False, as_json=False)
    assert "00000.1/t2/" in capsys.readouterr().out.replace("\n", "")
