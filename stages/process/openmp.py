"""How many threads a process of ours computes with, and how they wait for each other.

GNU OpenMP, which torch has, lets a thread that waits spin for milliseconds. On cores that are not its
own that is time taken from the very thread it waits for: on two cores at a load of 15, a forward and
backward pass of SmolLM2 took three times as long as with a spin of microseconds.
"""

from __future__ import annotations

import os
from typing import Final

_SPINS: Final = "1000"  # some microseconds: enough where a core is free


def openmp_environment(threads: int) -> None:
    """Set this process's environment, before torch is imported. What the user has set of waiting stays.

    Ray sets OMP_NUM_THREADS to 1 for actors that hold no CPU; ours are counted by the caller.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
