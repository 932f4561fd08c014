"""Which GPUs a plan asks of this machine or of a cluster, and whether they and some CPU are there.

Ray would wait for ever, without a word, for a device that no node has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.plan.memory import Needs
from pipeline.plan.readers import readers_of
from stages.engines.kinds import engine_class

_ROUNDING: Final = 1e-4  # Ray's own steps of a resource
STAGE_CPUS: Final = 0.25  # that a task of a stage takes of one node


@dataclass(frozen=True, slots=True)
class Ask:
    """GPUs of one process. `setting` is what asks for them."""

    setting: str
    gpus: float


def gpus_asked(plan: Needs) -> list[Ask]:
    """What engines, trainers and reward models of a plan hold at the same time, a process each."""
    asks = [
        Ask(_gpus_of_an_engine(base_id, spec.replicas), spec.num_gpus)
        for base_id, spec in plan.engine_specs.items()
        if not engine_class(spec.kind).is_remote
        for _ in range(spec.replicas)
    ]
    bases: set[str] = set()
    for model_id, trainer in plan.trainer_specs.items():
        if trainer.adapter is not None:  # adapters on one base share its processes
            if trainer.base_id in bases:
                continue
            bases.add(trainer.base_id)
        asks += [Ask(f"models.{model_id}.trainer.num_gpus", trainer.num_gpus)] * trainer.ranks
    asks += [Ask(reader.setting, reader.gpus) for reader in readers_of(plan.resolved)]
    return [ask for ask in asks if ask.gpus > 0]


def _gpus_of_an_engine(base_id: str, replicas: int) -> str:
    several = f"models.{base_id}.replicas = {replicas}, each with "
    return f"{several}num_gpus" if replicas > 1 else f"models.{base_id}.num_gpus"


def gpu_problem(asks: Sequence[Ask], nodes: Mapping[str, int]) -> str | None:
    """One sentence where the GPUs of these nodes, by name, do not hold all processes; None if they do.

    A process is on one node; less than one GPU is a part of one device, more must be whole.
    """
    for ask in asks:
        if ask.gpus > 1 and ask.gpus != int(ask.gpus):
            return (
                f"{ask.setting} = {ask.gpus:g}: a process gets a part of one GPU or whole ones; use a whole "
                "number, or one below 1"
            )
    there = " and ".join(f"{count} on {name}" for name, count in nodes.items())
    free = {name: [1.0] * count for name, count in nodes.items()}
    for ask in sorted(asks, key=lambda ask: -ask.gpus):
        if not any(_take(devices, ask.gpus) for devices in free.values()):
            return (
                f"{ask.setting} = {ask.gpus:g}, but there is no GPU left for it: {_asked(asks)}, and "
                f"there are {there or 'none'}; set it to 0 to compute on the processor, or ask for less"
            )
    return None


def cpu_problem(nodes: Mapping[str, float], address: str) -> str | None:
    """One sentence where none of the nodes, by name, has the CPU that a stage's task waits for; else None.

    Engines, trainers and players hold no CPU of Ray's, and stages none while they wait.
    """
    if any(cpus >= STAGE_CPUS - _ROUNDING for cpus in nodes.values()):
        return None
    there = " and ".join(f"{cpus:g} on {name}" for name, cpus in nodes.items())
    return (
        f"cluster.address = {address!r}: stages run as tasks that take {STAGE_CPUS:g} CPU of a node, and the "
        f"cluster has {there or 'no node'}; start a node with `ray start --num-cpus` of at least 1, or set "
        'cluster.address to "local"'
    )


def gpus_here() -> int:
    """How many GPUs this process may use. Imports torch."""
    import torch

    return int(torch.cuda.device_count())


def _take(devices: list[float], gpus: float) -> bool:
    """Take the GPUs from one node, if it has them."""
    if gpus >= 1:
        whole = [index for index, left in enumerate(devices) if left >= 1 - _ROUNDING]
        if len(whole) < gpus:
            return False
        for index in whole[: int(gpus)]:
            devices[index] = 0.0
        return True
    for index, left in enumerate(devices):
        if left >= gpus - _ROUNDING:
            devices[index] = left - gpus
            return True
    return False


def _asked(asks: Sequence[Ask]) -> str:
    counts: dict[Ask, int] = {}
    for ask in asks:
        counts[ask] = counts.get(ask, 0) + 1
    each = [f"{n} × {a.gpus:g}" if n > 1 else f"{a.gpus:g}" for a, n in counts.items()]
    return f"the processes ask for {' + '.join(each)} = {sum(a.gpus for a in asks):g} in all"
