"""How much main memory a process has needed at most, read from the kernel (Linux)."""

from __future__ import annotations

import re
from pathlib import Path


def peak_resident_bytes(pid: int | None = None) -> int:
    """The most bytes that a process and the children that it has now have had resident, summed.

    Each process has its own peak, and pages that processes share (libraries) count in each: the sum is an
    upper bound. Device memory is not in it.

    Args:
        pid: of a process of this machine; None for this one.
    """
    import psutil

    process = psutil.Process(pid)
    return sum(_peak(p.pid) for p in (process, *process.children(recursive=True)))


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0
    line = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(line.group(1)) * 1024 if line else 0  # a process that has ended has no memory
