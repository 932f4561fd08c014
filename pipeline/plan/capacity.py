"""Whether the machines that a plan is for have the memory that it needs, on devices and hosts, and what to
change where they have not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from pipeline.plan import resources
from pipeline.plan.devices import Machine, Node, Process, place, shortage, values_of
from pipeline.plan.memory import DRIVER_GIB, Needs, available_gib, replica_names
from pipeline.plan.readers import ReaderNeed, readers_of
from pipeline.plan.resolve import Resolved
from pipeline.settings.schema import NodeSection
from stages.engines.base import EngineSpec
from stages.engines.kinds import device_need as engine_need
from stages.engines.kinds import engine_class
from stages.engines.kinds import memory_estimate as engine_memory
from stages.process.devices import DeviceNeed, device_memory_here
from stages.training.device_memory import device_need as trainer_need
from stages.training.spec import TrainerSpec, activation_estimate, base_estimate
from stages.training.spec import memory_estimate as trainer_memory
from stages.weights.adapters import AdapterSpec
from stages.weights.checkpoints import describe_checkpoint

_FEWEST_TOKENS: Final = 256  # of a micro-batch, below which a remedy is not looked for
_MOST_RANKS: Final = 64


@dataclass(frozen=True, slots=True)
class Demand:
    """Engines and trainers, and what else decides how much memory they need: all that a remedy may change."""

    engines: Mapping[str, EngineSpec]  # by base id
    trainers: Mapping[str, TrainerSpec]  # by model id, like the next three
    parameters: Mapping[str, int]
    tokens: Mapping[str, int]  # of a micro-batch
    roles: Mapping[str, int]
    readers: Sequence[ReaderNeed] = ()  # processes of reward models

    def with_trainer(self, model_id: str, **changes: Any) -> Demand:
        spec = replace(self.trainers[model_id], **changes)
        return replace(self, trainers={**self.trainers, model_id: spec})

    def with_section(self, base_id: str, **changes: Any) -> Demand:
        """With changes of [models.<base>.trainer], which all adapters on a base share."""
        of_base = {m: replace(s, **changes) for m, s in self.trainers.items() if s.base_id == base_id}
        return replace(self, trainers={**self.trainers, **of_base})

    def with_tokens(self, model_id: str, tokens: int) -> Demand:
        return replace(self, tokens={**self.tokens, model_id: tokens})

    def with_all_tokens(self, tokens: int) -> Demand:
        """With [ppo] micro_batch_tokens at most this, for every model."""
        return replace(self, tokens={m: min(own, tokens) for m, own in self.tokens.items()})

    def with_engine(self, base_id: str, **changes: Any) -> Demand:
        return replace(self, engines={**self.engines, base_id: replace(self.engines[base_id], **changes)})


def demand_of(plan: Needs) -> Demand:
    """What a plan's engines and trainers are."""
    infos = {
        model_id: plan.checkpoints.get(model_id) or describe_checkpoint(spec.checkpoint)
        for model_id, spec in plan.trainer_specs.items()
    }
    plans = plan.resolved.model_plans
    return Demand(
        engines={b: s for b, s in plan.engine_specs.items() if not engine_class(s.kind).is_remote},
        trainers=dict(plan.trainer_specs),
        parameters={model_id: info.parameters for model_id, info in infos.items()},
        tokens={model_id: plans[model_id].ppo.micro_batch_tokens for model_id in infos},
        roles={model_id: len(plans[model_id].roles) for model_id in infos},
        readers=readers_of(plan.resolved),
    )


def processes_of(demand: Demand) -> list[Process]:
    """A process for each engine and for each rank of a trainer; adapters on one base share its ranks."""
    processes = [
        _engine(name, spec)
        for base_id, spec in demand.engines.items()
        for name in replica_names(base_id, spec)
    ]
    groups: dict[str, list[str]] = {}
    for model_id, spec in demand.trainers.items():
        groups.setdefault(spec.base_id if spec.adapter is not None else f"={model_id}", []).append(model_id)
    for model_ids in groups.values():
        spec = demand.trainers[model_ids[0]]
        whose = spec.base_id if len(model_ids) > 1 else spec.model_id
        need, step = _rank_of(demand, model_ids)
        for rank in range(spec.ranks):
            name = f"trainer {whose}" + (f", rank {rank}" if spec.ranks > 1 else "")
            processes.append(Process(name, spec.num_gpus, False, need, step, whose))
    processes += [_reader(number, need) for number, need in enumerate(demand.readers)]
    return processes


def _reader(number: int, need: ReaderNeed) -> Process:
    of_device = {"weights": need.weights_gib} if need.gpus else {}
    taken = DeviceNeed(of_device, {}, need.host_gib)
    return Process(f"{need.name}, process {number}", need.gpus, False, lambda gib: taken)


def _engine(name: str, spec: EngineSpec) -> Process:
    several = spec.replicas > 1
    if spec.num_gpus:
        need = cache(partial(engine_need, spec))
        return Process(f"engine {name}", spec.num_gpus, True, need, is_replica=several)
    on_host = DeviceNeed({}, {}, engine_memory(spec))
    return Process(f"engine {name}", 0.0, True, lambda gib: on_host, is_replica=several)


def _rank_of(demand: Demand, model_ids: Sequence[str]) -> tuple[Any, float]:
    """What one rank of the trainers of these models needs, and its training step in main memory."""
    first = demand.trainers[model_ids[0]]
    if first.num_gpus:
        needs = [
            trainer_need(
                demand.trainers[m],
                demand.parameters[m],
                demand.tokens[m],
                demand.roles[m],
                with_base=number == 0,
            )
            for number, m in enumerate(model_ids)
        ]
        kept: dict[str, float] = {}
        for each in needs:
            for name, gib in each.kept.items():
                kept[name] = kept.get(name, 0.0) + gib
        working = max((each.working for each in needs), key=lambda parts: sum(parts.values()))
        need = DeviceNeed(kept, working, sum(each.host for each in needs))
        return (lambda gib: need), 0.0
    host = sum(trainer_memory(demand.trainers[m], demand.parameters[m], demand.roles[m]) for m in model_ids)
    if first.adapter is not None:
        host += base_estimate(first, demand.parameters[model_ids[0]])
    step = max(
        activation_estimate(demand.trainers[m], demand.parameters[m], demand.tokens[m]) for m in model_ids
    )
    need = DeviceNeed({}, {}, host / first.ranks)
    return (lambda gib: need), step / first.ranks


def nodes_described(sections: Sequence[NodeSection]) -> list[Node]:
    """The machines of [[cluster.nodes]], one by one, in order."""
    kinds = [section for section in sections for _ in range(section.count)]
    return [
        Node(f"node {number}", (section.gpu_memory_gib,) * section.gpus, section.memory_gib or None)
        for number, section in enumerate(kinds)
    ]


def this_machine(num_gpus: int) -> Node:
    """This machine with so many GPUs, their memory where it can be asked for."""
    known = device_memory_here() if num_gpus else ()
    devices = known if len(known) == num_gpus else (0.0,) * num_gpus
    return Node("this machine", devices, available_gib())


def nodes_at(address: str, num_gpus: int | None = None) -> list[Node] | None:
    """This machine where Ray's address is "local"; None for a cluster, which is asked when it is joined.

    Args:
        num_gpus: GPUs of this machine, where they are known already.
    """
    return [this_machine(num_gpus or 0)] if address == "local" else None


def planned_nodes(plan: Needs, address: str) -> list[Node] | None:
    """The machines that `check` plans for: those that the settings describe, or as `nodes_at`."""
    if described := plan.resolved.cluster.nodes:
        return nodes_described(described)
    return nodes_at(address, resources.gpus_here() if resources.gpus_asked(plan) else 0)


def start_problem(plan: Needs, address: str) -> str | None:
    """`machine_problem` of the machine that a run starts on; None where that is a cluster's to say."""
    return machine_problem(
        plan, nodes_at(address, resources.gpus_here() if resources.gpus_asked(plan) else 0)
    )


def machine_problem(plan: Needs, nodes: Sequence[Node] | None) -> str | None:
    """One sentence where these machines lack the GPUs or the memory of a plan; None without machines."""
    if nodes is None:
        return None
    gpus = {node.name: len(node.devices) for node in nodes}
    return resources.gpu_problem(resources.gpus_asked(plan), gpus) or memory_shortage(plan, nodes)


def placed(plan: Needs, nodes: Sequence[Node]) -> list[Machine] | None:
    """Where the processes of a plan have room; None where there are not enough GPUs."""
    return _placed(demand_of(plan), nodes, plan.resolved)


def placement_values(plan: Needs, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """`placed` as plain values; [] where there are not enough GPUs."""
    machines = placed(plan, nodes)
    return [] if machines is None else values_of(machines)


def memory_shortage(plan: Needs, nodes: Sequence[Node]) -> str | None:
    """One sentence where these machines have not the memory, with the remedy that fits; None if they have, or
    lack GPUs already."""
    demand = demand_of(plan)
    machines = _placed(demand, nodes, plan.resolved)
    if machines is None or (problem := shortage(machines)) is None:
        return None
    if any(need.problem for m in machines for device in m.devices for _, need in device.held):
        return problem  # it says itself what to do
    return f"{problem}; {_remedy(demand, nodes, plan.resolved)}"


def _placed(demand: Demand, nodes: Sequence[Node], resolved: Resolved) -> list[Machine] | None:
    driver = DRIVER_GIB + resolved.cluster.object_store_gib
    return place(processes_of(demand), nodes, driver)


def _remedy(demand: Demand, nodes: Sequence[Node], resolved: Resolved) -> str:
    """The first change, of one model or its engine before those of all, with which the plan fits."""
    for words, changed in _changes(demand, sum(len(node.devices) for node in nodes)):
        machines = _placed(changed, nodes, resolved)
        if machines is not None and shortage(machines) is None:
            return f"it fits with {words}"
    return (
        "neither smaller micro-batches nor recomputed activations make it fit: share a model between roles, "
        "train adapters, use a smaller checkpoint, or more and larger devices"
    )


def _changes(demand: Demand, devices: int) -> Iterator[tuple[str, Demand]]:
    """Changes that need less memory in some place, those that cost least first, with their settings."""
    for base_id, engine in demand.engines.items():
        for fewer in range(engine.replicas - 1, 0, -1):
            yield f"models.{base_id}.replicas = {fewer}", demand.with_engine(base_id, replicas=fewer)
        if not engine.num_gpus and engine.kv_cache_gib > 1:
            words = f"models.{base_id}.kv_cache_gib = {engine.kv_cache_gib / 2:g}"
            yield words, demand.with_engine(base_id, kv_cache_gib=engine.kv_cache_gib / 2)
    for model_id, spec in demand.trainers.items():
        where, section = f"models.{model_id}", f"models.{spec.base_id}.trainer"
        tokens = demand.tokens[model_id]
        while (tokens := tokens // 2) >= _FEWEST_TOKENS:
            yield f"{where}.ppo.micro_batch_tokens = {tokens}", demand.with_tokens(model_id, tokens)
        if not spec.activation_checkpointing:
            yield (
                f"{section}.activation_checkpointing = true",
                demand.with_section(spec.base_id, activation_checkpointing=True),
            )
        if spec.ranks > 1 and spec.zero_stage < 2:
            yield f"{section}.zero_stage = 2", demand.with_section(spec.base_id, zero_stage=2)
        yield from _lower_shares(demand)
        yield from _more_ranks(demand, model_id, devices)
        if not spec.num_gpus and spec.ranks > 1:
            yield f"{section}.ranks = 1", demand.with_section(spec.base_id, ranks=1)
        if spec.adapter is None and spec.critic is None and not spec.compile:
            small = demand.with_trainer(model_id, adapter=AdapterSpec())
            yield f"an adapter in the place of all weights, {where}.adapter = {{rank = 16}}", small
    yield from _changes_of_all(demand)
    yield from _lower_shares(demand)


def _changes_of_all(demand: Demand) -> Iterator[tuple[str, Demand]]:
    """Changes of every trainer at once, for where that of one does not do."""
    if len(demand.trainers) < 2:
        return
    recomputing, words = demand, []
    for base_id in dict.fromkeys(spec.base_id for spec in demand.trainers.values()):
        recomputing = recomputing.with_section(base_id, activation_checkpointing=True)
        words.append(f"models.{base_id}.trainer.activation_checkpointing = true")
    for step, beside in ((demand, ""), (recomputing, f", {', '.join(words)}")):
        tokens = max(demand.tokens.values())
        while (tokens := tokens // 2) >= _FEWEST_TOKENS:
            yield f"ppo.micro_batch_tokens = {tokens}{beside}", step.with_all_tokens(tokens)


def _lower_shares(demand: Demand) -> Iterator[tuple[str, Demand]]:
    for base_id, spec in demand.engines.items():
        tenths = int(spec.gpu_memory_fraction * 20)
        for share in (number / 20 for number in range(tenths, 1, -1) if spec.num_gpus):
            if share < spec.gpu_memory_fraction:
                yield (
                    f"models.{base_id}.gpu_memory_fraction = {share:g}",
                    demand.with_engine(base_id, gpu_memory_fraction=share),
                )


def _more_ranks(demand: Demand, model_id: str, devices: int) -> Iterator[tuple[str, Demand]]:
    """More ranks with ZeRO stage 2, without and with recomputed activations."""
    spec = demand.trainers[model_id]
    if not spec.num_gpus:
        return
    section = f"models.{spec.base_id}.trainer"
    share = spec.num_gpus if spec.num_gpus > 0.5 else 1.0  # two ranks never share a device
    ranks = spec.ranks
    while ranks <= min(devices, _MOST_RANKS):
        for recompute in sorted({spec.activation_checkpointing, True}):
            if ranks > 1 and (ranks, recompute) != (spec.ranks, spec.activation_checkpointing):
                changes = {"ranks": ranks, "zero_stage": 2, "activation_checkpointing": recompute}
                words = f"{section}.ranks = {ranks}, zero_stage = 2"
                words += ", activation_checkpointing = true" if recompute else ""
                words += "" if share == spec.num_gpus else f", num_gpus = {share:g}"
                yield words, demand.with_section(spec.base_id, num_gpus=share, **changes)
        ranks *= 2
