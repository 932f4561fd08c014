"""One rank of a trainer: a plain class that a Ray actor wraps and a test calls directly.

Torch and DeepSpeed are imported in `start`, after the thread count is set: neither reads it later.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stages.process.openmp import openmp_environment
from stages.tables.parquet import Part, TableRef, TableSink
from stages.training.spec import (
    DistillReport,
    DistillSpec,
    RankingReport,
    RankingSpec,
    TrainerSpec,
    UpdateReport,
)
from stages.training.trust.spec import TrustState
from workflows.trajectory import library_seed

if TYPE_CHECKING:
    from stages.training.network.adapted import Base
    from stages.training.unit import Unit


class TrainWorker:
    """The process of one rank: its threads, its place among the ranks, and the unit that it trains.

    `bases` are the frozen networks of this process: workers of adapters on one base are given the same.
    """

    def __init__(self, spec: TrainerSpec, rank: int, bases: dict[str, Base] | None = None) -> None:
        threads = spec.num_threads or max(1, len(os.sched_getaffinity(0)) // spec.ranks)
        openmp_environment(threads)
        if not spec.num_gpus:
            os.environ["DS_ACCELERATOR"] = "cpu"
        self.spec = spec
        self.rank = rank
        self.threads = threads
        self._unit: Unit | None = None
        self._bases = {} if bases is None else bases
        self._failed = False
        self._store: Any = None

    def listen(self) -> tuple[str, int]:
        """Open the rendezvous (rank 0 only) on a free port, and say where it is."""
        from torch.distributed import TCPStore

        host = _own_address()
        timeout = timedelta(seconds=self.spec.init_timeout_seconds)
        self._store = TCPStore(host, 0, None, is_master=True, wait_for_workers=False, timeout=timeout)
        return host, self._store.port

    def start(self, address: tuple[str, int], version: int, resume: str | None) -> dict[str, Any]:
        """Join the other ranks, load the weights, and answer with what was started.

        Raises:
            UsageError: the checkpoint is not a causal language model.
            RunFailed: `resume` is not a whole checkpoint of this model at `version`.
        """
        import torch

        from stages.process.imports import import_trainer_libraries

        import_trainer_libraries()
        from stages.training import checkpoint
        from stages.training.unit import Unit

        torch.set_num_threads(self.threads)
        torch.manual_seed(library_seed(self.spec.seed) + self.rank)
        device = torch.device("cuda", 0) if self.spec.num_gpus else torch.device("cpu")
        self._join(address)
        self._unit = Unit(self.spec, self.rank, device, version, self._bases)
        if resume is not None:
            self._unit.last_report = checkpoint.load(self._unit, resume, version)
        return {
            "version": version,
            "parameters": sum(p.numel() for p in self._unit.policy.parameters()),
            "precision": self.spec.precision,
            "device": str(device),
            "backend": "nccl" if self.spec.num_gpus else "gloo",
            "zero_stage": self.spec.zero_stage,
            "threads": self.threads,
        }

    @property
    def unit(self) -> Unit:
        """What is trained, once `start` has been called."""
        assert self._unit is not None, "the worker has not been started"
        return self._unit

    def update(
        self,
        partition: TableRef,
        version: int,
        advantages: TableRef | None = None,
        scores: TableRef | None = None,
        off_policy: bool = False,
        at: tuple[int, int] = (0, 0),
        kl_scale: TableRef | None = None,
        trust: TrustState | None = None,
        stop_rows: TableRef | None = None,
    ) -> UpdateReport:
        """Train on this rank's rows. Collective: every rank calls it. See `TrainerGroup.update`."""
        from stages.training.step import run_update

        self._refuse_after_failure()
        self._failed = True  # a step that breaks off leaves gradients behind
        arguments = (partition, version, advantages, scores, off_policy, at, kl_scale, trust, stop_rows)
        report = run_update(self.unit, *arguments)
        self._failed = False
        self._hand_back()
        self.unit.version = report.version_after
        self.unit.last_report = report
        return report

    def settle(self, reason: str | None) -> UpdateReport:
        """Keep the candidate of the last update, or take it back. Collective. See `TrainerGroup.settle`."""
        from workflows.errors import RunFailed

        unit, report = self.unit, self.unit.last_report
        self._refuse_after_failure()
        if unit.held is None or report is None:
            raise RunFailed(
                f"the trainer of model {self.spec.model_id!r} has no candidate on trial; start it anew"
            )
        self._failed = True  # a restoration that breaks off leaves neither weights
        if reason is None:
            unit.last_report = replace(report, on_trial=False)
        else:
            from stages.training.report import taken_back

            assert unit.spec.trust is not None
            unit.held.restore()
            unit.last_report = taken_back(report, unit.spec.trust, reason)
        unit.held = None
        self._failed = False
        unit.version = unit.last_report.version_after
        return unit.last_report

    def score(
        self,
        partition: TableRef,
        sink: TableSink,
        needs: frozenset[str],
        off_policy: bool = False,
        bootstrap: frozenset[tuple[str, int]] = frozenset(),
    ) -> dict[int, Part]:
        """Score and write this rank's parts. Not collective. See `TrainerGroup.score`."""
        from stages.training.score import run_score

        self._refuse_after_failure()
        parts = run_score(self.unit, partition, sink, needs, off_policy, bootstrap)
        self._hand_back()
        return parts

    def distill(
        self, partition: TableRef, spec: DistillSpec, prompts: TableRef | None = None
    ) -> DistillReport:
        """Teach this rank's rows. Collective. See `TrainerGroup.distill`."""
        from stages.training.distill import run_distill

        self._refuse_after_failure()
        self._failed = True  # a step that breaks off leaves gradients behind
        report = run_distill(self.unit, partition, spec, prompts)
        self._failed = False
        return report

    def learn_ranking(
        self, partition: TableRef, pairs: TableRef, spec: RankingSpec, until: int
    ) -> RankingReport:
        """Learn from this rank's rows. Collective. See `TrainerGroup.learn_ranking`."""
        from stages.training.ranking import run_ranking

        self._refuse_after_failure()
        self._failed = True  # a step that breaks off leaves gradients behind
        report = run_ranking(self.unit, partition, pairs, spec, until)
        self._failed = False
        return report

    def value_head(self) -> dict[str, Any]:
        """The value head: `weight` (heads, width) and `bias` (heads,), as lists of numbers."""
        critic = self.unit.critic
        assert critic is not None, "a unit with a value head"
        return {name: tensor.detach().cpu().tolist() for name, tensor in critic.layer.state_dict().items()}

    def write(self, uri: str, trainer_state: bool) -> dict[str, Any]:
        """Write this rank's files of a checkpoint. Collective. See `stages.training.checkpoint`."""
        from stages.training import checkpoint

        return checkpoint.write(self.unit, uri, trainer_state)

    def release(self) -> None:
        """Hand what activations took back to the system, before another trainer works."""
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)

    def progress(self) -> tuple[int, int]:
        """Rows and tokens of this rank so far. Answered while an update runs, on a thread of its own."""
        return (0, 0) if self._unit is None else self._unit.trained

    def memory(self) -> int:
        """Resident bytes of this process."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def peak_memory(self) -> int:
        """The most bytes that this process has had resident."""
        from stages.process.memory import peak_resident_bytes

        return peak_resident_bytes()

    def close(self) -> None:
        """Drop the engine: for use without Ray, where the process lives on."""
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.close()

    def _hand_back(self) -> None:
        """Give the device back what activations took, which torch's allocator would keep: an engine that
        wakes on the same device, in a process of its own, can't have it else."""
        if self.unit.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _refuse_after_failure(self) -> None:
        from workflows.errors import RunFailed

        if self._failed:
            raise RunFailed(f"the trainer of model {self.spec.model_id!r} failed before; start it anew")

    def _join(self, address: tuple[str, int]) -> None:
        import torch.distributed as dist

        host, port = address
        # DeepSpeed reads these; the group itself is made from the store, so no second port is opened.
        os.environ.update(
            RANK=str(self.rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(self.spec.ranks),
            MASTER_ADDR=host,
            MASTER_PORT=str(port),
        )
        if dist.is_initialized():  # a process joins once: DeepSpeed remembers its groups for good
            return
        if self._store is None:
            timeout = timedelta(seconds=self.spec.init_timeout_seconds)
            self._store = dist.TCPStore(host, port, None, is_master=False, timeout=timeout)
        dist.init_process_group(
            "nccl" if self.spec.num_gpus else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.spec.ranks,
            timeout=timedelta(seconds=self.spec.update_timeout_seconds),
        )


def _own_address() -> str:
    """An address of this machine that other machines of the cluster reach."""
    try:
        import ray

        if ray.is_initialized():
            return str(ray.util.get_node_ip_address())
    except ImportError:
        pass
    return socket.gethostbyname("localhost")
