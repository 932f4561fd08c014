"""What is there of an unfinished iteration can be looked at, and the newest finished one comes first."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.report.write import write_report
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.stored import print_place
from pipeline.views.where import print_where
from stages.tables.parquet import TableSink
from tests.pipeline.test_report import read
from tests.support.stored_runs import Shape, settings_of, write_iterations
from workflows.trajectory import EPISODES, TURNS


def begin(run: Run, index: int) -> None:
    """Two committed shards of iteration `index`: in the second the engine died."""
    tables = run.iteration(0).tables()[0]
    folder = run.iteration(index).folder
    for shard, status in enumerate(("ok", "infra_error")):
        parts = {}
        for name, schema in (("turns", TURNS), ("episodes", EPISODES)):
            rows = tables[name].read_part(0).to_pylist()
            for row in rows:
                row |= {"episode_id": f"{index:05d}/t{shard}/{row['sample']}", "status": status}
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
    assert "engine died (as in 00001/t1/" in out
    out = shown(run, capsys, episode="00001/t1/0")
    assert "iteration 1 is unfinished" in out
    assert "engine died" in out
    # reading for anything but looking sees finished stages alone
    assert "turns" not in Finished.read(run.iteration(1)).tables


def test_conditions_reach_them_and_the_hint_names_what_is_looked_at(run: Run, capsys: Any) -> None:
    print_where(shelf_of(run), 1, "status = 'infra_error'", limit=1, full=False, as_json=False)
    out = " ".join(capsys.readouterr().out.replace("\n", " ").split())
    assert "of iteration 1, which is unfinished, of run" in out
    assert f"show {run.folder.url} --episode 00001/t1/" in out


def test_the_report_has_them_too(run: Run) -> None:
    data, _ = read(write_report(run))
    assert any("of its unfinished rollout" in note for note in data["about"]["places"][1]["notes"])
    assert "00001/t1/0" in {episode["episode_id"] for episode in data["episodes"]}
