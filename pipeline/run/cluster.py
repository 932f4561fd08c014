"""Starting or joining Ray, quietly, and refusing a cluster that would never start a task."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pipeline.plan.capacity import memory_shortage
from pipeline.plan.devices import Node
from pipeline.plan.memory import Needs, available_gib
from pipeline.plan.resources import STAGE_CPUS, cpu_problem, gpu_problem, gpus_asked
from stages.process.devices import device_memory_here
from stages.waiting import Overdue, answer, came
from workflows.errors import RunFailed

_LATE: Final = "timed out during startup"  # as Ray says it


def start_ray(address: str, object_store_gib: float, start_seconds: float = 120.0) -> None:
    """Join or start a Ray cluster, quietly. A local one is private to this process.

    Raises:
        RunFailed: Ray did not start, or started no task, naming what the cluster says it has; Ray is left
            then.
    """
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # for workers: each has a core, and more threads than that cost a third of a credit stage's time
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        options |= {"include_dashboard": False, "object_store_memory": int(object_store_gib * 2**30)}
    _initialise(address, options, start_seconds)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs each stage; failures come back to us
    try:
        check_cpus(address)
        check_free_slot(slow=start_seconds)
    except RunFailed:
        ray.shutdown()
        raise


def _initialise(address: str, options: dict[str, Any], seconds: float) -> None:
    """`ray.init`, tried anew where a busy machine made a local Ray miss its own limit of half a minute.

    Raises:
        RunFailed: Ray did not start, or there is no cluster at the address.
    """
    import psutil
    import ray

    began = time.monotonic()
    while True:
        before = set(psutil.Process().children(recursive=True))
        try:
            ray.init(address=address, **options)
            return
        except Exception as error:
            why = next((line for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
            ray.shutdown()
            for process in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if address == "local" and _LATE in str(error) and time.monotonic() - began < seconds:
                continue
            where = "here" if address == "local" else f"at {address!r}"
            raise RunFailed(
                f"Ray did not start {where}: {type(error).__name__}: {why.strip()}; "
                + (
                    "raise cluster.ray_start_seconds if the machine is only busy"
                    if address == "local"
                    else 'start the cluster, or set cluster.address to that of one that runs, or to "local"'
                )
            ) from None


def check_free_slot(held: float = 10.0, slow: float = 120.0) -> None:
    """A cluster whose CPUs are all held makes Ray Data wait for ever without a word: say so instead.

    Args:
        held: seconds after which a task that has not started is taken for one without a CPU.
        slow: seconds for one that has a CPU: on a busy machine a worker takes its time to start.

    Raises:
        RunFailed: no task was started, naming what the cluster has.
    """
    import ray

    probe = ray.remote(num_cpus=STAGE_CPUS)(_ping).remote()
    began, waited = time.monotonic(), min(held, slow)
    while not came(probe, waited):
        free = ray.available_resources()
        waited = slow - (time.monotonic() - began)
        if waited > 0 and free.get("CPU", 0) >= STAGE_CPUS:
            continue
        ray.cancel(probe, force=True)
        raise RunFailed(
            f"the Ray cluster started no task within {time.monotonic() - began:.0f} s; it has "
            f"{ray.cluster_resources()} and free are {free}; end what holds its CPUs, use another "
            "cluster.address, or raise cluster.ray_start_seconds"
        )


def check_cpus(address: str) -> None:
    """Refuse a cluster none of whose nodes has a CPU for a stage, at once: no waiting makes one.

    Raises:
        RunFailed: naming what each node has.
    """
    if problem := cpu_problem(_nodes("CPU"), address):
        raise RunFailed(problem)


def _nodes(resource: str) -> dict[str, float]:
    """What each node that is alive has of a resource, by host and, where a host has several, number."""
    import ray

    nodes: dict[str, float] = {}
    for node in ray.nodes():
        if node["Alive"]:
            host = node["NodeManagerHostname"]
            name = host if host not in nodes else f"{host} ({sum(n.startswith(host) for n in nodes) + 1})"
            nodes[name] = node["Resources"].get(resource, 0)
    return nodes


def check_gpus(plan: Needs) -> None:
    """Refuse a plan for whose processes no node of the Ray cluster has the GPUs; on a cluster of other
    machines, also one whose memory does not do.

    Raises:
        RunFailed: naming the setting, what is asked for in all, and what each node has.
    """
    asks = gpus_asked(plan)
    gpus = {name: int(count) for name, count in _nodes("GPU").items()}
    if asks and (problem := gpu_problem(asks, gpus)):
        raise RunFailed(problem)
    if plan.resolved.cluster.address != "local" and (problem := memory_shortage(plan, _machines(gpus))):
        raise RunFailed(problem)


def _machines(gpus: Mapping[str, int], seconds: float = 60.0) -> list[Node]:
    """Each node that is alive, in the order of `gpus`: its GPUs' memory and free main memory, as far as it
    says so in time."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0.01, max_retries=0)(_memory_of_node)
    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in ids
    ]
    machines = []
    for (name, count), answering in zip(gpus.items(), asked, strict=True):
        devices, free = (), None
        with contextlib.suppress(Overdue, ray.exceptions.RayError):  # then it is not known, and not checked
            devices, free = answer(answering, f"the memory of node {name}", seconds)
        machines.append(Node(name, devices if len(devices) == count else (0.0,) * count, free))
    return machines


def _memory_of_node() -> tuple[tuple[float, ...], float]:
    """GiB of each GPU of this node, and of its main memory that is free."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides them from a task that asks for none
    return device_memory_here(), available_gib()


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
    for host, asked_of in asked.items():
        try:
            problem = answer(asked_of, f"reading {url} on node {host}", seconds)
        except Overdue as error:
            problem = str(error)
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
