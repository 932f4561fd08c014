"""Ray, started only where something needs it: for commands that may find all their steps done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.run.signals import raise_on_stop_signals
from pipeline.settings.schema import ClusterSection


@contextmanager
def ray_when_needed(cluster: ClusterSection) -> Iterator[Callable[[], None]]:
    """A function that starts Ray when it is first called; Ray ends with the block."""
    import ray

    from pipeline.run.cluster import start_ray

    started = False

    def start() -> None:
        nonlocal started
        if started or ray.is_initialized():
            return
        start_ray(cluster.address, cluster.object_store_gib, cluster.ray_start_seconds)
        started = True
        raise_on_stop_signals()  # starting Ray puts its own handlers in their place

    try:
        yield start
    finally:
        if started:
            ray.shutdown()
