"""The process of one rank as a Ray actor: a worker for a model, or one for each adapter on one base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stages.training.spec import TrainerSpec
from stages.training.worker import TrainWorker

if TYPE_CHECKING:
    from stages.training.network.adapted import Base


class Rank:
    """Holds the workers, and the base that they share; each keeps its own optimizer, version and failures."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.workers: dict[str, TrainWorker] = {}
        self.bases: dict[str, Base] = {}

    def add(self, spec: TrainerSpec) -> None:
        """A worker for this model; its `start` comes as a call."""
        self.workers[spec.model_id] = TrainWorker(spec, self.rank, self.bases)

    def call(self, model_id: str, method: str, *arguments: Any) -> Any:
        """What `method` of that model's worker answers."""
        return getattr(self.workers[model_id], method)(*arguments)

    def progress(self, model_id: str) -> tuple[int, int]:
        """`TrainWorker.progress`, beside a running call."""
        return self.workers[model_id].progress()


def rank_actor(spec: TrainerSpec, rank: int) -> Any:
    """Start the process, with a worker for `spec`."""
    import ray

    class Actor(Rank):
        # all work runs on one thread; only the question how far it is has another
        @ray.method(concurrency_group="watch")
        def progress(self, model_id: str) -> tuple[int, int]:
            return super().progress(model_id)

    options = {"num_cpus": 0, "num_gpus": spec.num_gpus, "max_restarts": 0, "max_task_retries": 0}
    actor = ray.remote(concurrency_groups={"watch": 1}, **options)(Actor).remote(rank)
    actor.add.remote(spec)
    return actor
