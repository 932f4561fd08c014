"""Which floats a model computes in where the settings leave that open.

bfloat16 is half the memory, and on hardware made for it about twice the speed. A processor without
instructions for it takes several times as long as in float32 (SmolLM2 on two cores with AVX2 alone: matrix
products 6 times, prefill in vLLM 6 times, decoding 3 times), so there it is never the choice.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, Literal

from stages.weights.checkpoints import CheckpointInfo

Precision = Literal["bf16", "fp32"]

_CPUINFO: Final = Path("/proc/cpuinfo")
_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, ARM
_HALF: Final = frozenset({"bfloat16", "float16"})
_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@functools.cache
def cpu_computes_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether this machine's processor has instructions for bfloat16; False where it does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(
        _FLAGS & set(values.split())
        for name, _, values in (line.partition(":") for line in lines)
        if name.strip().lower() in ("flags", "features")
    )


def trainer_precision(asked: Literal["auto", "bf16", "fp32"], num_gpus: float) -> Precision:
    """What a trainer computes in: as asked, or bf16 on a GPU and on a processor made for it, else fp32.

    The machine that starts the run speaks for all machines of a cluster.
    """
    if asked != "auto":
        return asked
    return "bf16" if num_gpus or cpu_computes_bf16() else "fp32"


def engine_dtype(asked: str, num_gpus: float, stored: str) -> str:
    """What an engine computes in: as asked, which with "auto" is the checkpoint's dtype; but then float32 on
    a processor that is slow at half precision. The engine's own machine decides."""
    slow = stored in _HALF and not num_gpus and not cpu_computes_bf16()
    return "float32" if asked == "auto" and slow else asked


def is_rounded(precision: Precision, asked: str, num_gpus: float, stored: str) -> bool:
    """Whether an engine samples with fewer digits than its model is trained with. Steps below the engine's
    resolution are then not sampled, and the gap between sampler and trainer grows with every update."""
    chosen = engine_dtype(asked, num_gpus, stored)
    return precision == "fp32" and (stored if chosen == "auto" else chosen) in _HALF


def weights_gib(info: CheckpointInfo, asked: str, num_gpus: float) -> float:
    """GiB of a checkpoint's weights in an engine, which loads them as `engine_dtype` says."""
    dtype = engine_dtype(asked, num_gpus, info.dtype)
    return (info.parameters * _BYTES[dtype] if dtype in _BYTES else info.bytes) / 2**30
