"""Which tasks an iteration takes, and in which parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.base import Account, Context, StageResult
from stages.sample import SampleStage
from stages.tables.parquet import TableSink
from workflows.trajectory import TASKS, rows_to_table

ROWS = [{"task_id": f"t{i}", "split": "train", "inputs": "{}", "gold": "{}"} for i in range(12)]


def sampled(folder: Path, iteration: int, **changes: Any) -> tuple[list[list[str]], StageResult]:
    """The ids of the tasks of an iteration by part, and what the stage says of them."""
    given = {"seed": 7, "tasks_per_iteration": 5, "tasks_per_shard": 2, **changes}
    stage = SampleStage(rows_to_table(ROWS, TASKS), "train", **given)
    sink = TableSink("tasks", str(folder / str(iteration)), TASKS)
    result = stage.run({}, {"tasks": sink}, Context(iteration))
    table = sink.ref(result.parts["tasks"])
    parts = [table.read_part(k, ["task_id"])["task_id"].to_pylist() for k in range(len(table.parts))]
    return parts, result


def ids(parts: list[list[str]]) -> list[str]:
    return [task_id for part in parts for task_id in part]


def test_iterations_take_slices_that_follow_each_other_in_parts_of_a_shard(tmp_path: Path) -> None:
    (first, said), (second, _) = sampled(tmp_path, 0), sampled(tmp_path, 1)
    assert [len(part) for part in first] == [2, 2, 1]
    assert not set(ids(first)) & set(ids(second))
    assert said.accounts == [Account("sample", "task", 5, 5)]
    assert said.metrics == {"tasks": 5}
    again, _ = sampled(tmp_path / "resumed", 1)
    assert again == second
    other, _ = sampled(tmp_path / "other", 0, seed=8)
    assert other != first


def test_the_first_slice_comes_every_time_where_that_is_wanted(tmp_path: Path) -> None:
    parts = [sampled(tmp_path, iteration, always_first=True)[0] for iteration in (0, 1, 5)]
    assert parts[0] == parts[1] == parts[2] == sampled(tmp_path / "plain", 0)[0]


def test_remarks_about_the_data_are_in_every_summary(tmp_path: Path) -> None:
    assert sampled(tmp_path, 3, remarks=("2 rows are not used",))[1].notes == ["2 rows are not used"]
