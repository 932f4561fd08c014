"""Starting Ray: a cluster whose CPUs are held is told from one that is slow."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from pipeline.run import cluster
from workflows.errors import RunFailed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

REFUSED = """
import sys
import ray
from pipeline.run import cluster
from workflows.errors import RunFailed

def refuse(slow):
    assert ray.is_initialized()
    raise RunFailed("no CPU")

cluster.check_free_slot = refuse
try:
    cluster.start_ray(sys.argv[1], 0.1)
except RunFailed as error:
    print(error, ray.is_initialized())
"""


def test_ray_is_left_where_it_can_not_be_used() -> None:
    """In a process that joins the Ray of this one."""
    command = [sys.executable, "-c", REFUSED, ray.get_runtime_context().gcs_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.stdout == "no CPU False\n", done.stderr


class Holder:
    """Holds CPUs for as long as it lives."""

    def ready(self) -> bool:
        return True


def test_held_cpus_are_refused_with_what_there_is_and_slow_workers_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpus = ray.cluster_resources()["CPU"]
    holder = ray.remote(num_cpus=cpus)(Holder).remote()
    assert ray.get(holder.ready.remote())
    with pytest.raises(
        RunFailed, match=r"started no task within \d+ s; it has .*CPU.*end what holds its CPUs"
    ):
        cluster.check_free_slot(held=0.5)
    ray.kill(holder)
    cluster.check_free_slot()
    ends = time.monotonic() + 60  # Ray tells of freed CPUs some time after it has given them out again
    while ray.available_resources().get("CPU", 0) < cpus and time.monotonic() < ends:
        time.sleep(0.1)

    wait, waited = ray.wait, []

    def late(refs: list[ray.ObjectRef], timeout: float) -> object:
        waited.append(timeout)
        return ([], refs) if len(waited) == 1 else wait(refs, timeout=timeout)

    monkeypatch.setattr(ray, "wait", late)
    cluster.check_free_slot()
    assert len(waited) == 2
