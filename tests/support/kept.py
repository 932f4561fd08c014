"""Processes of trainers and engines that tests hand on to each other.

The start of a trainer is imports, four to six seconds of a core, and the tests of whole runs start more than
a hundred. What stays is the process with its libraries; the workers in it, their weights, optimizers and
random numbers are new for every trainer, as they are for the tests that start several in their own process.
That a run goes on in new processes as if nothing had been is what the tests of kills hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stages.engines import replicas
from stages.engines import start as engines
from stages.engines.base import EngineSpec
from stages.training import group, rank
from stages.training.spec import TrainerSpec

MOST: Final = (
    3  # processes of a kind that wait, each of half a GB: the largest team of a test has three models
)
ANSWER_SECONDS: Final = 10.0
ENGINES: Final = ("scripted", "torch")


class EmptiedRank(rank.Rank):
    def empty(self) -> None:
        """Close all workers, and forget the bases that they shared."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()
        self.bases.clear()


class EmptiedEngine(engines.EngineActor):
    async def empty(self) -> None:
        await self.close()
        self._server = self._starting = None

    async def fill(self, spec: EngineSpec) -> None:
        self.spec = spec


@dataclass
class Kept:
    """Actors of one kind: those that wait, and what those in use were started for."""

    waiting: dict[Hashable, list[Any]] = field(default_factory=dict)
    in_use: dict[Any, Hashable] = field(default_factory=dict)

    def take(self, key: Hashable) -> Any:
        """One that waits under this key, or None."""
        found = self.waiting.get(key)
        return self.use(found.pop(), key) if found else None

    def use(self, actor: Any, key: Hashable) -> Any:
        self.in_use[actor] = key
        return actor

    def give_back(self, actor: Any) -> bool:
        """Whether it waits now: it has answered, and there is room. A second time changes nothing."""
        import ray

        if any(actor in waiting for waiting in self.waiting.values()):
            return True
        key = self.in_use.pop(actor, None)
        if key is None or sum(map(len, self.waiting.values())) >= MOST:
            return False
        try:
            ray.get(actor.empty.remote(), timeout=ANSWER_SECONDS)
        except (ray.exceptions.RayError, TimeoutError):  # dead, or in something that never ends
            return False
        self.waiting.setdefault(key, []).append(actor)
        return True


@contextlib.contextmanager
def kept_processes() -> Iterator[None]:
    """Inside, trainers of one rank, and a fleet's engines without a library of their own, start in processes
    that wait, and leave them behind."""
    import pytest  # here: the processes import this module, too

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank, "Rank", EmptiedRank)
        patch.setattr(group, "rank_actor", _rank_actor)
        patch.setattr(group.TrainerGroup, "close", _close)
        patch.setattr(engines, "EngineActor", EmptiedEngine)
        # of fleets alone: who starts an engine without one sees it end
        patch.setattr(replicas, "start_engine", _start_engine)
        patch.setattr(replicas, "stop_engines", _stop_engines)
        yield


_RANKS: Final = Kept()
_ENGINES: Final = Kept()
_start_anew: Final = engines.start_engine
_stop: Final = engines.stop_engines


def _rank_actor(spec: TrainerSpec, number: int) -> Any:
    if spec.ranks > 1 or spec.num_gpus:  # a process joins one group of ranks for good
        return rank.rank_actor(spec, number)
    if (actor := _RANKS.take(spec.num_threads)) is None:
        return _RANKS.use(rank.rank_actor(spec, number), spec.num_threads)
    actor.add.remote(spec)
    return actor


def _close(self: group.TrainerGroup) -> None:
    import ray

    actors, self._actors = self._actors, []
    for actor in actors if ray.is_initialized() else []:
        if not _RANKS.give_back(actor):
            ray.kill(actor)


def _start_engine(spec: EngineSpec, name: str | None = None, **options: Any) -> Any:
    import ray

    key = (spec.kind, spec.num_threads)
    if name or not _stays(spec) or (handle := _ENGINES.take(key)) is None:
        return _ENGINES.use(_start_anew(spec, name, **options), key if _stays(spec) else None)
    engines.check_spec(spec)
    ray.get(handle.fill.remote(spec))
    handle.ready.remote()
    if options.get("wait", True):
        engines.wait_ready([handle])
    return handle


def _stays(spec: EngineSpec) -> bool:
    """Whether the process of an engine waits for the next test: one that is watched has a call open."""
    return spec.kind in ENGINES and spec.replicas == 1


def _stop_engines(handles: Sequence[Any], timeout_seconds: float = engines.CLOSE_SECONDS) -> None:
    import ray

    if ray.is_initialized():
        _stop([handle for handle in handles if not _ENGINES.give_back(handle)], timeout_seconds)
