"""How much memory a plan needs on this machine, and whether it has that much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pipeline.plan.resolve import Resolved
from stages.engines.base import EngineSpec
from stages.engines.kinds import engine_class
from stages.engines.kinds import memory_estimate as engine_memory
from stages.training.spec import TrainerSpec, activation_estimate, base_estimate
from stages.training.spec import memory_estimate as trainer_memory
from stages.weights.checkpoints import CheckpointInfo

DRIVER_GIB = 1.0  # this process, Ray's own, players and Ray Data's workers


class Needs(Protocol):
    """What takes memory: of a whole plan, or of trainers alone."""

    @property
    def resolved(self) -> Resolved: ...
    @property
    def engine_specs(self) -> Mapping[str, EngineSpec]: ...
    @property
    def trainer_specs(self) -> Mapping[str, TrainerSpec]: ...
    @property
    def checkpoints(self) -> Mapping[str, CheckpointInfo]: ...


def memory_report(plan: Needs) -> dict[str, float]:
    """GiB of host memory: an estimate for each engine and trainer, and what is available now."""
    from stages.weights.checkpoints import describe_checkpoint

    parts: dict[str, float] = {}
    training = 0.0  # one trainer works at a time
    for base_id, spec in plan.engine_specs.items():
        if not engine_class(spec.kind).is_remote:
            parts[f"engine {base_id}"] = engine_memory(spec)
    for model_id, trainer in plan.trainer_specs.items():
        info = plan.checkpoints.get(model_id) or describe_checkpoint(trainer.checkpoint)
        of_model = plan.resolved.model_plans[model_id]
        tokens = of_model.ppo.micro_batch_tokens
        parts[f"trainer {model_id}"] = trainer_memory(trainer, info.parameters, len(of_model.roles))
        if trainer.adapter is not None:
            parts[f"trainer base {trainer.base_id}"] = base_estimate(trainer, info.parameters)
        training = max(training, activation_estimate(trainer, info.parameters, tokens))
    parts["a training step"] = training
    parts["object store"] = plan.resolved.cluster.object_store_gib
    parts["driver"] = DRIVER_GIB
    return {**parts, "total": sum(parts.values()), "available": available_gib()}


def memory_problem(plan: Needs, address: str) -> str | None:
    """One sentence where the plan can't fit this machine; None where Ray's `address` is a cluster, whose
    nodes are others."""
    if address != "local":
        return None
    memory = memory_report(plan)
    if memory["total"] <= memory["available"]:
        return None
    largest = max((v, k) for k, v in memory.items() if k not in ("total", "available"))
    return (
        f"the plan needs about {memory['total']:.1f} GiB of memory and {memory['available']:.1f} GiB is "
        f"available; the largest part is {largest[1]!r} with {largest[0]:.1f} GiB; share a model between "
        "roles, or lower kv_cache_gib, trainer.ranks or ppo.micro_batch_tokens"
    )


def available_gib() -> float:
    import psutil

    return float(psutil.virtual_memory().available) / 2**30
