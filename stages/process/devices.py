"""What a process needs of the devices that it computes on, and which devices a machine has.

Nothing here was measured on a GPU: allowances are assumptions and named as such.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CONTEXT_GIB: Final = 1.0
"""GiB of a device that a process takes before it holds a tensor: CUDA's context, the workspaces of cuBLAS and
the buffers of NCCL. An assumption."""

CUDA_PROCESS_GIB: Final = 2.5
"""GiB of main memory of a process with torch's CUDA libraries, beside what it loads. An assumption."""


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """GiB that a process needs of each of its devices, by what takes them, and of its node's main memory.

    `kept` is held from start to end; `working` is on top while it works and is handed back after: by an
    engine that falls asleep, by a trainer after an update. `problem` says why no such device can do.
    """

    kept: Mapping[str, float]
    working: Mapping[str, float]
    host: float
    problem: str | None = None
    notes: Mapping[str, float] = field(default_factory=dict)  # what is good to know, such as cached tokens

    @property
    def kept_gib(self) -> float:
        return sum(self.kept.values())

    @property
    def working_gib(self) -> float:
        return sum(self.working.values())


def device_memory_here() -> tuple[float, ...]:
    """GiB of each NVIDIA device that this process may use, as `nvidia-smi` says; () where it says none.

    Starts no CUDA context, so that the process stays free to fork.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_devices(answer, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_devices(answer: str, visible: str | None) -> tuple[float, ...]:
    """GiB of the devices in an answer of `nvidia-smi` (index, UUID, MiB), in the order of `visible`.

    Args:
        answer: a line for each device.
        visible: CUDA_VISIBLE_DEVICES, indices or the beginnings of UUIDs; None shows all.
    """
    devices: list[tuple[str, str, float]] = []
    for line in answer.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[2].replace(".", "", 1).isdigit():
            devices.append((parts[0], parts[1], float(parts[2]) / 1024))
    if visible is None:
        return tuple(gib for _, _, gib in devices)
    shown = []
    for name in (part.strip() for part in visible.split(",")):
        found = [gib for index, uuid, gib in devices if name and (index == name or uuid.startswith(name))]
        if not found:
            break  # as CUDA does: an unknown name hides itself and all that follow
        shown.append(found[0])
    return tuple(shown)
