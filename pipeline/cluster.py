"""Starting or joining Ray, quietly, and refusing a cluster that would never start a task."""

from __future__ import annotations

import logging
import os
from typing import Any

from workflows.errors import RunFailed


def start_ray(address: str, object_store_gib: float) -> None:
    """Join or start a Ray cluster, quietly. A local one is private to this process.

    Raises:
        RunFailed: no task could be scheduled within 10 s, naming what the cluster says it has.
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
    _check_free_slot()


def _check_free_slot(seconds: float = 10.0) -> None:
    """A cluster whose CPUs are all held makes Ray Data wait for ever without a word: say so instead."""
    import ray

    probe = ray.remote(num_cpus=0.25)(_ping).remote()
    ready, _ = ray.wait([probe], timeout=seconds)
    if not ready:
        ray.cancel(probe, force=True)
        raise RunFailed(
            f"the Ray cluster started no task within {seconds:g} s; it has {ray.cluster_resources()} and "
            f"free are {ray.available_resources()}; end what holds its CPUs, or use another cluster.address"
        )


def _ping() -> int:
    return os.getpid()
