"""A module under DeepSpeed: forward, backward over micro-batches, one optimizer step."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from stages.training.spec import TrainerSpec


class Network:
    """A module whose trained parameters have a DeepSpeed engine and an AdamW of their own."""

    def __init__(self, spec: TrainerSpec, module: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
        self.module = module
        self._spec = spec
        self.engine = _initialise(spec, module, list(parameters))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.engine(*arguments, **options)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """`last` says that no further micro-batch follows in this optimizer step. Collective then."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip and step; the gradient norm from before clipping, inf or NaN where no step was made.

        The optimizer steps with the settings of now: a loaded state has brought those that it was saved with.
        """
        engine = self.engine
        set_adamw(engine.optimizer, self._spec, learning_rate, self._spec.weight_decay)
        if hasattr(engine.optimizer, "clip_grad"):
            engine.optimizer.clip_grad = self._spec.gradient_clip
        if not hasattr(engine.optimizer, "overflow"):  # plain fp32 is left to torch, and keeps no norm
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            if math.isfinite(norm):
                engine.step()
        else:  # DeepSpeed itself leaves out a step whose gradient is not finite
            engine.step()
            norm = math.inf if engine.optimizer.overflow else float(engine.get_global_grad_norm())
        if not math.isfinite(norm):
            engine.zero_grad()
        return norm

    def close(self) -> None:
        self.engine.destroy()


def set_adamw(optimizer: Any, spec: TrainerSpec, learning_rate: float, weight_decay: float) -> None:
    """Put the settings of a spec into all groups of an AdamW."""
    for group in optimizer.param_groups:
        group.update(lr=learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=weight_decay)


def _initialise(spec: TrainerSpec, module: nn.Module, parameters: list[nn.Parameter]) -> Any:
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.WARNING)
    # Without this, DeepSpeed compiles a shared-memory collective with the machine's C++ compiler at
    # every first start; gloo does the same work.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if spec.num_gpus else "gloo"
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, dist_init_required=False)
    optimizer = torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=deepspeed_config(spec), dist_init_required=False
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
            # and are averaged over ranks so: DeepSpeed would round the sum to bf16 first, of one rank too
            config["communication_data_type"] = "fp32"
            # each gradient as soon as it is there, still warm in the cache, instead of all at the end
            config["bf16"]["immediate_grad_update"] = True
    return config
