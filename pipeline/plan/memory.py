"""How much main memory a plan needs in all; where it has room is in `pipeline.plan.capacity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pipeline.plan.readers import readers_of
from pipeline.plan.resolve import Resolved
from stages.engines.base import EngineSpec
from stages.engines.kinds import device_need as engine_need
from stages.engines.kinds import engine_class
from stages.engines.kinds import memory_estimate as engine_memory
from stages.training.device_memory import device_need as trainer_need
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
    """GiB of main memory: an estimate for each engine and trainer, and what is available on this machine."""
    from stages.weights.checkpoints import describe_checkpoint

    parts: dict[str, float] = {}
    training = 0.0  # one trainer works at a time
    bases: set[str] = set()  # whose adapters share processes on devices
    for base_id, spec in plan.engine_specs.items():
        if not engine_class(spec.kind).is_remote:
            on_device = spec.num_gpus > 0
            gib = engine_need(spec, 0.0).host if on_device else engine_memory(spec)
            parts |= {f"engine {name}": gib for name in replica_names(base_id, spec)}
    for model_id, trainer in plan.trainer_specs.items():
        info = plan.checkpoints.get(model_id) or describe_checkpoint(trainer.checkpoint)
        of_model = plan.resolved.model_plans[model_id]
        tokens = of_model.ppo.micro_batch_tokens
        if trainer.num_gpus:
            rank = trainer_need(trainer, info.parameters, tokens, with_base=trainer.base_id not in bases)
            parts[f"trainer {model_id}"] = rank.host * trainer.ranks
            bases |= {trainer.base_id} if trainer.adapter is not None else set()
            continue
        parts[f"trainer {model_id}"] = trainer_memory(trainer, info.parameters, len(of_model.roles))
        if trainer.adapter is not None:
            parts[f"trainer base {trainer.base_id}"] = base_estimate(trainer, info.parameters)
        training = max(training, activation_estimate(trainer, info.parameters, tokens))
    for reader in readers_of(plan.resolved):
        parts[reader.name] = parts.get(reader.name, 0.0) + reader.host_gib
    parts["a training step"] = training
    parts["object store"] = plan.resolved.cluster.object_store_gib
    parts["driver"] = DRIVER_GIB
    return {**parts, "total": sum(parts.values()), "available": available_gib()}


def replica_names(base_id: str, spec: EngineSpec) -> list[str]:
    """How the processes of an engine are called: after its base, with a number where it has replicas."""
    if spec.replicas == 1:
        return [base_id]
    return [f"{base_id}.{number}" for number in range(1, spec.replicas + 1)]


def available_gib() -> float:
    import psutil

    return float(psutil.virtual_memory().available) / 2**30
