"""One rank of a trainer: a plain class that a Ray actor wraps and a test calls directly.

Torch and DeepSpeed are imported in `start`, after the thread count is set: neither reads it later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from datetime import timedelta
from typing import Any

from stages.tables import TableRef
from stages.training.spec import TrainerSpec, UpdateReport


class TrainWorker:
    """Holds the policy, its DeepSpeed engine and the version of its weights."""

    def __init__(self, spec: TrainerSpec, rank: int) -> None:
        threads = spec.num_threads or max(1, len(os.sched_getaffinity(0)) // spec.ranks)
        # Ray sets OMP_NUM_THREADS to 1 for actors that hold no CPU
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if not spec.num_gpus:
            os.environ["DS_ACCELERATOR"] = "cpu"
        self.spec = spec
        self.rank = rank
        self.threads = threads
        self.version = 0
        self.last_report: UpdateReport | None = None
        self.trained = (0, 0)  # rows and tokens that went forward and backward since the start
        self.engine: Any = None
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
            UsageError: the checkpoint is no causal language model.
            RunFailed: `resume` is not a whole checkpoint of this model at `version`.
        """
        import torch

        from stages.training import checkpoint
        from stages.training.policy import load_policy

        torch.set_num_threads(self.threads)
        torch.manual_seed(self.spec.seed + self.rank)
        self.device = torch.device("cuda", 0) if self.spec.num_gpus else torch.device("cpu")
        self._join(address)
        policy, self.stored_dtype = load_policy(
            self.spec.checkpoint, self.spec.precision, self.spec.activation_checkpointing
        )
        self.policy = policy.to(self.device)
        self.vocabulary = int(policy.model.get_input_embeddings().num_embeddings)
        self.engine = self._initialise()
        self.version = version
        if resume is not None:
            self.last_report = checkpoint.load(self, resume, version)
        return {
            "version": self.version,
            "parameters": sum(p.numel() for p in policy.parameters()),
            "precision": self.spec.precision,
            "device": str(self.device),
            "backend": "nccl" if self.spec.num_gpus else "gloo",
            "zero_stage": self.spec.zero_stage,
            "threads": self.threads,
        }

    def update(self, partition: TableRef, iteration: int) -> UpdateReport:
        """Train on this rank's rows. Collective: every rank calls it. See `TrainerGroup.update`."""
        from stages.training.step import run_update
        from workflows.errors import RunFailed

        if self._failed:
            raise RunFailed(f"the trainer of model {self.spec.model_id!r} failed before; start it anew")
        self._failed = True  # a step that breaks off leaves gradients behind
        report = run_update(self, partition, iteration)
        self._failed = False
        self.version = report.version_after
        self.last_report = report
        return report

    def write(self, uri: str, trainer_state: bool) -> dict[str, Any]:
        """Write this rank's files of a checkpoint. Collective. See `stages.training.checkpoint`."""
        from stages.training import checkpoint

        return checkpoint.write(self, uri, trainer_state)

    def release(self) -> None:
        """Hand what activations took back to the system, before another trainer works."""
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # no glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)

    def progress(self) -> tuple[int, int]:
        """Rows and tokens of this rank so far. Answered while an update runs, on a thread of its own."""
        return self.trained

    def memory(self) -> int:
        """Resident bytes of this process."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def close(self) -> None:
        """Drop the engine: for use without Ray, where the process lives on."""
        import gc

        if self.engine is not None:
            self.engine.destroy()
        self.engine = self.policy = None
        gc.collect()

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

    def _initialise(self) -> Any:
        import deepspeed
        import torch
        from deepspeed.utils import logger

        logger.setLevel(logging.WARNING)
        # Without this, DeepSpeed compiles a shared-memory collective with the machine's C++ compiler at
        # every first start; gloo does the same work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend = "nccl" if self.spec.num_gpus else "gloo"
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, dist_init_required=False)
        optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=self.spec.learning_rate,
            betas=self.spec.betas,
            eps=self.spec.eps,
            weight_decay=self.spec.weight_decay,
            fused=True,
        )
        engine, *_ = deepspeed.initialize(
            model=self.policy,
            optimizer=optimizer,
            config=deepspeed_config(self.spec),
            dist_init_required=False,
        )
        return engine


def deepspeed_config(spec: TrainerSpec) -> dict[str, Any]:
    """The DeepSpeed settings of a spec. Loss scale and accumulation are ours, see `stages.training.step`."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # bookkeeping only
        "gradient_accumulation_steps": 1,
        "gradient_clipping": spec.gradient_clip,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": spec.zero_stage,
            "overlap_comm": bool(spec.num_gpus),
            "reduce_bucket_size": 500_000_000,
            "allgather_bucket_size": 500_000_000,
        },
    }
    if spec.precision == "bf16":
        config["bf16"] = {"enabled": True, "check_grad_overflow": True}
        if spec.zero_stage:  # gradients of many micro-batches add up in fp32
            config["data_types"] = {"grad_accum_dtype": "fp32"}
            # each gradient as soon as it is there, still warm in the cache, instead of all at the end
            config["bf16"]["immediate_grad_update"] = True
    return config


def _own_address() -> str:
    """An address of this machine that other machines of the cluster reach."""
    try:
        import ray

        if ray.is_initialized():
            return str(ray.util.get_node_ip_address())
    except ImportError:
        pass
    return socket.gethostbyname("localhost")
