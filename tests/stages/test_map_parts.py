"""Parts as tasks of Ray Data: receipts in order, failures as themselves, few tasks for brief parts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stages.parts import BRIEF_PARTS, REPORT_EVERY_SECONDS, TASKS_PER_CPU, _num_tasks, map_parts


@pytest.mark.parametrize("cpus", [1, 2, 7])
def test_brief_parts_share_tasks_until_every_task_has_enough_of_them(cpus) -> None:
    for parts in range(1, 2000):
        tasks = _num_tasks(parts, cpus, brief=True)
        assert min(parts, cpus) <= tasks <= min(parts, TASKS_PER_CPU * cpus)
        assert tasks == min(parts, cpus) or parts / tasks >= BRIEF_PARTS
    assert _num_tasks(1999, cpus, brief=True) == TASKS_PER_CPU * cpus
    assert _num_tasks(40, cpus, brief=False) == min(40, TASKS_PER_CPU * cpus)


def note(index: int, folder: str, fails_on: int = -1) -> dict[str, Any]:
    """Leaves a file, and a receipt."""
    if index == fails_on:
        raise LookupError(f"no part {index}")
    (Path(folder) / str(index)).touch()
    return {"square": index**2}


def wait_for_the_first(index: int, folder: str, cpus: int) -> dict[str, Any]:
    """The parts of the first task wait until the receipt of its first one has come."""
    if index == 0:
        time.sleep(2 * REPORT_EVERY_SECONDS)
    give_up = time.monotonic() + 60
    while index and index % cpus == 0 and not (Path(folder) / "told0").exists():
        if time.monotonic() > give_up:
            raise TimeoutError("the first receipt has not come")
        time.sleep(0.01)
    return {"index": index}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"brief": True}, {"concurrency": 2}], ids=str)
def test_receipts_come_in_the_order_of_the_indices_and_each_is_told_once(how, tmp_path, ray_cluster) -> None:
    indices, told = [5, 3, 8, 0, 9, 4], []
    found = map_parts(note, indices, on_done=told.append, folder=str(tmp_path), **how)
    assert [receipt["square"] for receipt in found] == [i**2 for i in indices]
    assert sorted(r["square"] for r in told) == sorted(i**2 for i in indices)
    assert {int(path.name) for path in tmp_path.iterdir()} == set(indices)
    assert map_parts(note, [], folder=str(tmp_path), **how) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"brief": True}, {"concurrency": 2}], ids=str)
def test_an_error_comes_back_as_itself_with_where_it_was_raised(how, tmp_path, ray_cluster) -> None:
    with pytest.raises(LookupError, match="no part 3") as caught:
        map_parts(note, range(6), folder=str(tmp_path), fails_on=3, **how)
    assert "in a worker, on part 3" in "".join(caught.value.__notes__)


@pytest.mark.slow
def test_parts_are_told_while_their_task_runs(tmp_path, ray_cluster) -> None:
    import ray

    cpus = int(ray.cluster_resources()["CPU"])

    def tell(receipt: dict[str, Any]) -> None:
        (tmp_path / f"told{receipt['index']}").touch()

    parts = range(4 * cpus)
    map_parts(wait_for_the_first, parts, brief=True, on_done=tell, folder=str(tmp_path), cpus=cpus)
    assert len(list(tmp_path.iterdir())) == len(parts)


LEFT = """
import gc, sys
import ray
from pipeline.run.cluster import start_ray
from stages.parts import map_parts

def fails(index):
    if index == 3:
        raise LookupError(f"no part {index}")
    return {"index": index}

start_ray(sys.argv[1], 0.1)
try:
    map_parts(fails, range(6))
except LookupError as error:
    caught = error
ray.shutdown()
print(caught)
del caught
gc.collect()
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_failed_execution_leaves_nothing_that_starts_ray_again(ray_cluster) -> None:
    """In a process that joins the Ray of this one, which other files go on using."""
    import ray

    command = [sys.executable, "-c", LEFT, ray.get_runtime_context().gcs_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    said, initialized = done.stdout.rsplit("\n", 2)[:2]
    assert "no part 3" in said, done.stderr
    assert initialized == "False"
