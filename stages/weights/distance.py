"""How far two sets of weights of one model are from each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stages.weights.checkpoints import weight_files

TOLERANCE: Final = 0.5  # of the way: unrelated updates of the same length are 1.4 of it apart


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of two sets of weights. `largest` is the largest difference of two numbers; `share` is the
    length of all differences over that of the way from the start, or over that of the weights themselves."""

    largest: float
    share: float
    of_the_way: bool

    def __str__(self) -> str:
        whole = "of the way that they have moved" if self.of_the_way else "of the weights' length"
        return f"{self.share:.2g} {whole}, the largest of one weight {self.largest:.2g}"


def distance(one: str, other: str, start: str | None = None) -> Distance:
    """The distance of the weights in two local folders.

    Tensors are read one by one, so a model of any size fits.

    Args:
        one, other: folders with the same tensors.
        start: the folder that `other` was trained from; None where there is none with the same tensors.

    Raises:
        UsageError: a folder has no weights.
    """
    import torch

    with ExitStack() as stack:
        now, then = (dict(_tensors(stack, folder)) for folder in (one, other))
        first = dict(_tensors(stack, start)) if start is not None else {}
        # a tied output layer may be stored in one folder and not in another
        names = [name for name in then if name in now]
        of_the_way = bool(first) and all(name in first for name in names)
        apart = moved = largest = 0.0
        for name in names:
            a, b = (file.get_tensor(name).to(torch.float64) for file in (now[name], then[name]))
            gap = a - b
            apart += float(gap.square().sum())
            largest = max(largest, float(gap.abs().max()) if gap.numel() else 0.0)
            way = b - first[name].get_tensor(name).to(torch.float64) if of_the_way else b
            moved += float(way.square().sum())
    share = math.sqrt(apart / moved) if moved else (0.0 if not apart else math.inf)
    return Distance(largest, share, of_the_way)


def _tensors(stack: ExitStack, folder: str) -> Iterator[tuple[str, Any]]:
    """Names of tensors, each with the open file that has it."""
    from safetensors import safe_open

    for path in weight_files(Path(folder)):
        file = stack.enter_context(safe_open(path, framework="pt"))
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            yield name, file
