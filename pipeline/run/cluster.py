"""Starting or joining Ray, quietly, and refusing a cluster that would never start a task."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Final

from workflows.errors import RunFailed

_SLOT: Final = 0.25  # CPUs of the task that is tried


def start_ray(address: str, object_store_gib: float) -> None:
    """Join or start a Ray cluster, quietly. A local one is private to this process.

    Raises:
        RunFailed: no task could be started, naming what the cluster says it has; Ray is left then.
    """
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # for workers: each has a core, and more threads than that cost a third of a credit stage's time
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        options |= {"include_dashboard": False, "object_store_memory": int(object_store_gib * 2**30)}
    ray.init(address=address, **options)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs each stage; failures come back to us
    try:
        check_free_slot()
    except RunFailed:
        ray.shutdown()
        raise


def check_free_slot(held: float = 10.0, slow: float = 120.0) -> None:
    """A cluster whose CPUs are all held makes Ray Data wait for ever without a word: say so instead.

    Args:
        held: seconds after which a task that has not started is taken for one without a CPU.
        slow: seconds for one that has a CPU: on a busy machine a worker takes its time to start.

    Raises:
        RunFailed: no task was started, naming what the cluster has.
    """
    import ray

    probe = ray.remote(num_cpus=_SLOT)(_ping).remote()
    began, waited = time.monotonic(), held
    while not ray.wait([probe], timeout=waited)[0]:
        free = ray.available_resources()
        waited = slow - (time.monotonic() - began)
        if waited > 0 and free.get("CPU", 0) >= _SLOT:
            continue
        ray.cancel(probe, force=True)
        raise RunFailed(
            f"the Ray cluster started no task within {time.monotonic() - began:.0f} s; it has "
            f"{ray.cluster_resources()} and free are {free}; end what holds its CPUs, or use another "
            "cluster.address"
        )


def check_workers_read(url: str, seconds: float = 60.0) -> None:
    """Refuse a file that this process has written and a worker of some node can't read.

    Raises:
        RunFailed: naming the node, and what its worker found.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0.01, max_retries=0)(_problem_reading)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    asked = {
        host: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(url)
        for node, host in nodes.items()
    }
    for host, answer in asked.items():
        try:
            problem = ray.get(answer, timeout=seconds)
        except ray.exceptions.RayError as error:
            problem = f"its worker gave no answer: {str(error).strip().splitlines()[-1]}"
        if problem:
            raise RunFailed(
                f"node {host} of the Ray cluster can't read {url}: {problem}; the run's root must be a place "
                "that all nodes reach, with its credentials and endpoint in the environment of each"
            )


def _problem_reading(url: str) -> str | None:
    """Why this process can't read a file; None if it can."""
    from stages.tables.filesystem import filesystem

    try:
        fs, path = filesystem(url)
        fs.cat_file(path)
    except Exception as error:  # whatever it is, it goes back as words
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return None


def _ping() -> int:
    return os.getpid()
