"""The devices themselves."""

from __future__ import annotations

from tests.gpu.outcome import Unmet


def devices() -> str:
    """A CUDA build, and every device that the driver names."""
    import torch

    from stages.process.devices import device_memory_here

    named, seen = device_memory_here(), torch.cuda.device_count()
    if torch.version.cuda is None:
        raise Unmet(f"torch {torch.__version__} is not a CUDA build; install requirements/cuda.txt")
    found = [torch.cuda.get_device_properties(i) for i in range(seen)]
    words = ", ".join(f"{p.name} {p.total_memory / 2**30:.1f} GiB" for p in found)
    if seen != len(named) or not seen:
        raise Unmet(f"torch sees {seen} ({words}), the driver names {len(named)}")
    if not torch.cuda.is_bf16_supported():
        raise Unmet(f"{words}: no bfloat16")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {seen}: {words}"
