"""The ranks of one trainer, as the driver sees them: start, update, save, close."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from stages.engines.base import Weights
from stages.tables import TableRef
from stages.training.spec import TrainerSpec, UpdateReport
from workflows.errors import CadreError, RunFailed

WATCH_SECONDS = 1.0


class TrainerGroup:
    """One process per rank, each a Ray actor with no logical CPU, joined by its own rendezvous.

    Nothing is retried: an update has side effects that must not happen twice. The first rank that
    fails, dies or falls silent ends the group, and the call raises.
    """

    def __init__(self, spec: TrainerSpec, actors: Sequence[Any], described: dict[str, Any]) -> None:
        self.spec = spec
        self._actors = list(actors)
        self._described = described
        self._version = int(described["version"])

    @classmethod
    def start(cls, spec: TrainerSpec, *, version: int, resume: str | None = None) -> TrainerGroup:
        """Start the ranks from the initial weights, or from the checkpoint folder `resume`.

        `version` is the policy version that the weights must have; 0 for the initial ones. Takes 10
        to 20 s on a CPU, most of it imports.

        Raises:
            RunFailed: a rank could not start within `spec.init_timeout_seconds`, or `resume` is not a
                complete checkpoint of this model at `version`.
        """
        if resume is None and version != 0:
            raise RunFailed(
                f"trainer of model {spec.model_id!r} was asked for version {version} without a checkpoint "
                "to resume from; the initial weights are version 0"
            )
        actors = [_actor_class(spec).remote(spec, rank) for rank in range(spec.ranks)]
        group = cls(spec, actors, {"version": version})
        deadline = time.monotonic() + spec.init_timeout_seconds
        (address,) = group._gather("start", [actors[0].listen.remote()], deadline)
        described = group._gather(
            "start", [actor.start.remote(address, version, resume) for actor in actors], deadline
        )
        group._described = described[0]
        return group

    @property
    def version(self) -> int:
        """The policy version of the weights that this trainer holds."""
        return self._version

    def describe(self) -> dict[str, Any]:
        """`parameters`, `device`, `precision`, `version`, `backend` of rank 0."""
        return {**self._described, "version": self._version}

    def update(
        self, partition: TableRef, iteration: int, on_progress: Callable[[int, int], None] | None = None
    ) -> UpdateReport:
        """Train on one partition and move to the next version, or say why not.

        `on_progress` is called about once a second with the rows and tokens trained since its last
        call (every epoch counts anew). Each rank reads only its own rows. A second delivery of the
        same iteration returns the same report and trains nothing.

        Raises:
            RunFailed: rows of another version, a partition made for more ranks, a loss or gradient
                that is not finite, or a rank that died or fell silent.
        """
        watch = self._watch(on_progress) if on_progress else None
        reports = self._call("update", "update", partition, iteration, watch=watch)
        if watch:
            watch()
        self._version = reports[0].version_after
        return reports[0]

    def save(self, uri: str) -> Weights:
        """Write a whole checkpoint: weights for engines and the state to resume from. Manifest last."""
        return self._write(uri, trainer_state=True)

    def publish(self, uri: str) -> Weights:
        """Write the weights only, in the same layout: no run can resume from such a folder."""
        return self._write(uri, trainer_state=False)

    def memory(self) -> list[int]:
        """Resident bytes of each rank's process."""
        return self._call("measure memory", "memory")

    def release(self) -> None:
        """Hand back what the last update took for activations: for trainers that wait side by side.

        Not done after every update: taking the pages anew costs a quarter of the next one.
        """
        self._call("release memory", "release")

    def close(self) -> None:
        """End the rank processes and free their memory. Safe to call twice."""
        import ray

        for actor in self._actors:
            with contextlib.suppress(Exception):  # already dead, or Ray is already down
                ray.kill(actor)
        self._actors = []

    def _write(self, uri: str, *, trainer_state: bool) -> Weights:
        from stages.training.checkpoint import commit, prepare

        prepare(uri)
        receipts = self._call("save", "write", uri, trainer_state)
        return commit(uri, self.spec, receipts)

    def _watch(self, on_progress: Callable[[int, int], None]) -> Callable[[], None]:
        """A function that tells `on_progress` what was trained since it was called last."""
        import ray

        seen = (0, 0)

        def so_far() -> tuple[int, int]:
            counts = ray.get([a.progress.remote() for a in self._actors])
            return sum(rows for rows, _ in counts), sum(tokens for _, tokens in counts)

        def tell() -> None:
            nonlocal seen
            now = so_far()
            if now != seen:
                on_progress(now[0] - seen[0], now[1] - seen[1])
                seen = now

        seen = so_far()
        return tell

    def _call(
        self, what: str, method: str, *arguments: Any, watch: Callable[[], None] | None = None
    ) -> list[Any]:
        if not self._actors:
            raise RunFailed(f"trainer of model {self.spec.model_id!r} is closed; can't {what}")
        deadline = time.monotonic() + self.spec.update_timeout_seconds
        refs = [getattr(a, method).remote(*arguments) for a in self._actors]
        return self._gather(what, refs, deadline, watch)

    def _gather(
        self, what: str, refs: list[Any], deadline: float, watch: Callable[[], None] | None = None
    ) -> list[Any]:
        """Results of all ranks; the first failure or a passed deadline ends the whole group."""
        import ray

        waiting = list(refs)
        try:
            while waiting:
                left = max(0.0, deadline - time.monotonic())
                done, waiting = ray.wait(waiting, timeout=min(left, WATCH_SECONDS) if watch else left)
                if watch and not done and time.monotonic() < deadline:
                    watch()
                    continue
                if not done:
                    ranks = [refs.index(r) for r in waiting]
                    raise RunFailed(
                        f"trainer of model {self.spec.model_id!r}: {what} did not finish in time; "
                        f"rank {', '.join(map(str, ranks))} of {self.spec.ranks} gave no answer"
                    )
                ray.get(done)
            return [ray.get(r) for r in refs]
        except ray.exceptions.RayError as error:
            self.close()
            raise _plain(error, self.spec, what) from None
        except BaseException:
            self.close()
            raise


def _actor_class(spec: TrainerSpec) -> Any:
    import ray

    from stages.training.worker import TrainWorker

    class Rank(TrainWorker):
        # all work runs on one thread; only the question how far it is has another
        @ray.method(concurrency_group="watch")
        def progress(self) -> tuple[int, int]:
            return super().progress()

    options = {"num_cpus": 0, "num_gpus": spec.num_gpus, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(concurrency_groups={"watch": 1}, **options)(Rank)


def _plain(error: Exception, spec: TrainerSpec, what: str) -> CadreError:
    """A worker's own error as itself; anything else as one sentence with the worker's last words."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, CadreError):
        return cause
    words = str(cause if cause is not None else error).strip().splitlines()
    last = next((line.strip() for line in reversed(words) if line.strip()), type(error).__name__)
    hint = ""
    if type(error).__name__ in ("ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"):
        hint = "; a rank's process ended, most often because memory ran out: lower the micro-batch tokens"
    return RunFailed(f"trainer of model {spec.model_id!r} failed to {what}: {last}{hint}")
