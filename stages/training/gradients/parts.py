"""The gradient of one optimizer step by part, where a part is a role, or one copy of a role.

Micro-batches never mix parts (`stages.batching`), so the gradient that a backward pass brings belongs to
one of them. It is read off as it arrives at each parameter, before DeepSpeed adds, spreads or clips it: the
same for full weights and adapters, in fp32 and bf16, at every ZeRO stage. Sums are in float32, as
DeepSpeed's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.training.gradients.projection import SIZE, Projection
from stages.training.gradients.spec import MeasureSpec

Part = tuple[str, str]
"""A role, and the branch of its copy; an empty branch where the role has no copies."""

_CHUNK: Final = 1 << 22  # numbers that are in float64 at a time


class PartGradients:
    """Collects the gradient of each part of a step: `start`, `begin` before each backward pass, `take`.

    The vector of a part has one number for every trained weight, in the order of `parameters` ("exact"), or
    the numbers of a projection ("estimate").
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], measure: MeasureSpec, *, seed: int, ranks: int
    ) -> None:
        self.measure = measure
        self.means: dict[str, Tensor] = {}  # by role: the running mean of its vector
        self._ranks = ranks
        self._parameters = [p for p in parameters if p.requires_grad]
        sizes = [p.numel() for p in self._parameters]
        self._offsets = [sum(sizes[:k]) for k in range(len(sizes))]
        self._device = self._parameters[0].device
        self.projection: Projection | None = None
        self.size = sum(sizes)
        if measure.gradients == "estimate":
            self.projection = Projection(sizes, seed, self._device)
            self.size = SIZE
        self._parts: Sequence[Part] = ()
        self._vectors = torch.empty(0)
        self._current: Tensor | None = None
        self._hooks = [p.register_hook(self._hook(k)) for k, p in enumerate(self._parameters)]

    def start(self, parts: Sequence[Part]) -> None:
        """An optimizer step begins, over these parts: the same on every rank, whether it has rows of them or
        not."""
        self._parts, self._current = parts, None
        self._vectors = torch.zeros((len(parts), self.size), dtype=torch.float32, device=self._device)

    def begin(self, part: Part | None) -> None:
        """The next backward pass is of this part; None: of nobody."""
        self._current = None if part is None else self._vectors[self._parts.index(part)]

    def take(self) -> Tensor:
        """The vectors of the step's parts over all ranks, (parts, size) float32. Collective."""
        vectors, self._vectors, self._current = self._vectors, torch.empty(0), None
        if self._ranks > 1:
            dist.all_reduce(vectors)
            # each rank's loss is multiplied by the number of ranks, because DeepSpeed averages
            vectors /= self._ranks
        return vectors

    def compare_with_mean(self, role: str, vector: Tensor) -> float | None:
        """Cosine of a role's vector with its running mean, which then takes the vector in."""
        mean = self.means.get(role)
        keep = 1 - 1 / self.measure.window
        if mean is None:
            self.means[role] = vector.clone()
            return None
        cosine = cosine_of(*(float(inner(a, b)) for a, b in ((vector, mean), (vector, vector), (mean, mean))))
        mean.mul_(keep).add_(vector, alpha=1 - keep)
        return cosine

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the running means, and what they are means of."""
        return {"gradients": self.measure.gradients, "size": self.size, "means": self.means}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the means of a checkpoint; means of another kind of vector are left."""
        if (state["gradients"], state["size"]) == (self.measure.gradients, self.size):
            self.means = {role: mean.to(self._device) for role, mean in state["means"].items()}

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Any:
        begin, count = self._offsets[index], self._parameters[index].numel()

        def read(gradient: Tensor) -> None:
            if self._current is None:
                return
            if self.projection is None:
                self._current[begin : begin + count] += gradient.reshape(-1)
            else:
                self.projection.add(self._current, gradient, index)

        return read


def products(vectors: Tensor) -> Tensor:
    """All inner products of (K, size) vectors, (K, K) in float64."""
    total = torch.zeros((len(vectors), len(vectors)), dtype=torch.float64, device=vectors.device)
    for piece in vectors.split(_CHUNK, dim=1):
        exact = piece.double()
        total += exact @ exact.T
    return total.cpu()


def inner(one: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, summed in float64."""
    total = torch.zeros((), dtype=torch.float64, device=one.device)
    for a, b in zip(one.split(_CHUNK), other.split(_CHUNK), strict=True):
        total += a.double() @ b.double()
    return total


def cosine_of(product: float, square: float, other: float) -> float | None:
    """The cosine of two vectors by their product and squares; None where one of them is 0."""
    if not (square > 0 and other > 0):
        return None
    return max(-1.0, min(1.0, product / (square * other) ** 0.5))
