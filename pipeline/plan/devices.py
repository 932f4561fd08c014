"""Where the processes of a plan have room: GPUs, their memory, and main memory, node by node.

Ray places the processes, so a plan that fits here can be placed, and one that does not fit can't. Engines and
trainers take turns: on one device engines are awake together, or one trainer works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stages.process.devices import DeviceNeed

_ROUNDING: Final = 1e-4  # Ray's own steps of a resource


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: GiB of each of its GPUs (0: not known) and of free main memory (None: not known)."""

    name: str
    devices: tuple[float, ...] = ()
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """An engine, or one rank of a trainer. `need` gives what it takes of devices of so many GiB, and of its
    node's main memory; `host_step` is main memory on top while its `trainer` makes an update."""

    name: str
    gpus: float
    is_engine: bool
    need: Callable[[float], DeviceNeed]
    host_step: float = 0.0
    trainer: str = ""  # whose ranks work at the same time
    is_replica: bool = False  # one of several engines of one model


@dataclass(slots=True)
class Device:
    """One GPU and what is placed on it."""

    gib: float
    left: float = 1.0  # the share that no process has asked for
    held: list[tuple[Process, DeviceNeed]] = field(default_factory=list)

    def total(self, *more: tuple[Process, DeviceNeed]) -> float:
        """GiB at the fullest moment, with more processes."""
        all_of_it = [*self.held, *more]
        awake = sum(need.working_gib for process, need in all_of_it if process.is_engine)
        training = max((need.working_gib for process, need in all_of_it if not process.is_engine), default=0)
        return sum(need.kept_gib for _, need in all_of_it) + max(awake, training)

    def has_room(self, process: Process, need: DeviceNeed) -> bool:
        return need.problem is None and (not self.gib or self.total((process, need)) <= self.gib)


@dataclass(slots=True)
class Machine:
    """A node and what is placed on it: GiB of main memory by process, and of a training step by trainer."""

    node: Node
    devices: list[Device]
    host: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    replicas: dict[str, float] = field(default_factory=dict)  # of `host`, those of engines with several

    @property
    def step(self) -> float:
        """GiB of the largest training step: one trainer works at a time."""
        return max(self.steps.values(), default=0.0)

    @property
    def host_total(self) -> float:
        return sum(self.host.values()) + self.step

    def has_memory(self, process: Process, need: DeviceNeed) -> bool:
        free = self.node.memory_gib
        step = self.steps.get(process.trainer, 0.0) + process.host_step
        return free is None or sum(self.host.values()) + need.host + max(self.step, step) <= free

    def take(self, process: Process, need: DeviceNeed, devices: Iterable[int]) -> None:
        for index in devices:
            self.devices[index].left -= min(1.0, process.gpus)
            self.devices[index].held.append((process, need))
        self.host[process.name] = need.host
        if process.is_replica:
            self.replicas[process.name] = need.host
        if process.host_step:
            self.steps[process.trainer] = self.steps.get(process.trainer, 0.0) + process.host_step


def place(
    processes: Sequence[Process], nodes: Sequence[Node], driver_gib: float = 0.0
) -> list[Machine] | None:
    """The processes on the nodes, the driver on the first; None where there are not enough GPUs.

    Processes go where they have room; one that has room nowhere goes where it gets its GPUs, so that the
    result shows what is missing (`shortage`).
    """
    return _place(processes, nodes, driver_gib, True) or _place(processes, nodes, driver_gib, False)


def _place(
    processes: Sequence[Process], nodes: Sequence[Node], driver_gib: float, by_memory: bool
) -> list[Machine] | None:
    machines = [Machine(node, [Device(gib) for gib in node.devices]) for node in nodes]
    if machines:
        machines[0].host["driver"] = driver_gib
    for process in sorted(processes, key=lambda p: (-min(p.gpus, 1), -p.gpus)):
        places = [(m, chosen) for m in machines for chosen in _choices(m, process.gpus)]
        if not places:
            return None

        def order(place: tuple[Machine, list[int]], process: Process = process) -> tuple[bool, float]:
            machine, chosen = place
            if not by_memory:
                return False, 0.0
            fits = all(_fits(machine, process, machine.devices[index]) for index in chosen)
            fits = fits and machine.has_memory(process, _need(process, machine, chosen))
            if process.gpus:  # as Ray packs: the fullest device that has room
                return not fits, sum(machine.devices[index].left for index in chosen)
            return not fits, machine.host_total - (machine.node.memory_gib or 0.0)

        machine, chosen = min(places, key=order)
        machine.take(process, _need(process, machine, chosen), chosen)
    return machines


def _fits(machine: Machine, process: Process, device: Device) -> bool:
    return device.has_room(process, process.need(device.gib))


def _need(process: Process, machine: Machine, chosen: Sequence[int]) -> DeviceNeed:
    return process.need(machine.devices[chosen[0]].gib if chosen else 0.0)


def _choices(machine: Machine, gpus: float) -> list[list[int]]:
    """The indices of devices that a process of so many GPUs could take on a machine."""
    if not gpus:
        return [[]]
    if gpus < 1:
        return [[i] for i, device in enumerate(machine.devices) if device.left >= gpus - _ROUNDING]
    whole = [i for i, device in enumerate(machine.devices) if device.left >= 1 - _ROUNDING]
    return [whole[: int(gpus)]] if len(whole) >= gpus else []


def shortage(machines: Sequence[Machine]) -> str | None:
    """What is missing in a placement, in words; None if everything fits."""
    for machine in machines:
        for _, need in (pair for device in machine.devices for pair in device.held):
            if need.problem is not None:
                return need.problem
    for machine in machines:
        for index, device in enumerate(machine.devices):
            if device.gib and device.total() > device.gib:
                parts = "; ".join(_of(process, need) for process, need in device.held)
                return (
                    f"GPU {index} of {machine.node.name} has {device.gib:.1f} GiB, and the plan needs about "
                    f"{device.total():.1f} of it: {parts}"
                )
    for machine in machines:
        free = machine.node.memory_gib
        if free is not None and machine.host_total > free:
            largest = sorted(machine.host.items(), key=lambda item: -item[1])[:3]
            parts = ", ".join(f"{name} {gib:.1f}" for name, gib in largest)
            step = f", a training step {machine.step:.1f}" if machine.step else ""
            return (
                f"{machine.node.name} has {free:.1f} GiB of main memory free, and the plan needs about "
                f"{machine.host_total:.1f} there: {parts}{step}"
            )
    return None


def values_of(machines: Sequence[Machine]) -> list[dict[str, Any]]:
    """A placement as plain values: for each node its main memory, and for each device what it holds."""
    return [
        {
            "node": machine.node.name,
            "memory_gib": machine.host_total,
            "memory_free_gib": machine.node.memory_gib,
            "replicas": dict(machine.replicas),
            "devices": [
                {
                    "gib": device.gib or None,
                    "needs_gib": device.total(),
                    "holds": {
                        process.name: {"kept": dict(need.kept), "working": dict(need.working), **need.notes}
                        for process, need in device.held
                    },
                }
                for device in machine.devices
            ],
        }
        for machine in machines
    ]


def _of(process: Process, need: DeviceNeed) -> str:
    parts = [f"{name} {gib:.1f}" for name, gib in need.kept.items() if gib >= 0.05]
    working = [f"{name} {gib:.1f}" for name, gib in need.working.items() if gib >= 0.05]
    if working:
        parts.append(f"{'awake' if process.is_engine else 'in an update'} {' + '.join(working)}")
    return f"{process.name} {', '.join(parts)}"
