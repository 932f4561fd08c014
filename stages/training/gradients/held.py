"""The gradient that an optimizer is about to step with, where DeepSpeed holds it: read, scaled, corrected.

After the last backward pass of a step it lies, averaged over ranks, in one of three places, by precision and
ZeRO stage: in the parameters' own `.grad` (stage 0); in the flat float32 buffer of DeepSpeed's bf16 optimizer
(stage 1 in bf16); in the pieces of its ZeRO optimizer (all others), where a rank holds its own slice of the
flat vector of all parameters, padded at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.training.gradients.parts import cosine_of, inner
from stages.training.gradients.shaping import damping_factor


class HeldGradient:
    """This rank's pieces of the gradient, one after another in the order of the parameters.

    Args:
        engine: DeepSpeed's, after the last backward pass of an optimizer step.
        parameters: that it trains, in its order.
    """

    def __init__(self, engine: Any, parameters: Sequence[nn.Parameter]) -> None:
        optimizer = engine.optimizer
        self.is_sliced = hasattr(optimizer, "averaged_gradients")
        if self.is_sliced:
            (pieces,) = optimizer.averaged_gradients.values()
            flat = getattr(pieces, "flat_partition", None)
            self.pieces = [p.view(-1) for p in pieces] if flat is None else [flat.view(-1)]
        elif hasattr(optimizer, "fp32_groups_gradients_flat"):
            (buffer,) = optimizer.fp32_groups_gradients_flat
            self.pieces = [buffer.view(-1)]
        else:  # a weight that took no part has no gradient; nothing is written to its zeros
            held = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            self.pieces = [gradient.detach().view(-1) for gradient in held]
        # where the first piece begins in the vector of all parameters
        self.start = dist.get_rank() * sum(p.numel() for p in self.pieces) if self.is_sliced else 0

    def scale(self, factor: float) -> None:
        """Multiply the gradient."""
        for piece in self.pieces:
            piece.mul_(factor)

    def add(self, vector: Tensor) -> None:
        """Add a vector of all parameters, (size,) float32."""
        at = self.start
        for piece in self.pieces:
            part = vector[at : at + piece.numel()]  # shorter where the piece is padded
            piece[: len(part)] += part.to(piece.dtype)
            at += piece.numel()

    def copy(self) -> list[Tensor]:
        """The pieces as they are now, in float32."""
        return [piece.detach().to(torch.float32, copy=True) for piece in self.pieces]


class CoherenceDamping:
    """Scales a unit's gradient by 1 - λ · max(0, cos(g, ḡ)), where ḡ is the running mean of what it scaled.

    ḡ begins with the first gradient and forgets with τ = 1 - 1/window; sums are in float32 or better, and
    three numbers go over the ranks. So a unit whose gradient keeps one direction for long moves less far in
    it. λ is at most 0.5 (`ShapingSpec`).
    """

    def __init__(self, damping: float, window: int) -> None:
        self.damping, self.keep = damping, 1 - 1 / window
        self.mean: list[Tensor] | None = None

    def apply(self, held: HeldGradient) -> float:
        """Scale the gradient; the factor. Collective where the gradient is spread over ranks."""
        gradient = held.copy()
        if self.mean is None:
            self.mean = gradient
            return 1.0
        sums = torch.zeros(3, dtype=torch.float64, device=gradient[0].device)
        for one, mean in zip(gradient, self.mean, strict=True):
            sums += torch.stack([inner(one, mean), inner(one, one), inner(mean, mean)])
        if held.is_sliced and dist.get_world_size() > 1:
            dist.all_reduce(sums)
        factor = damping_factor(cosine_of(*sums.tolist()), self.damping)
        held.scale(factor)
        for one, mean in zip(gradient, self.mean, strict=True):
            mean.mul_(self.keep).add_(one, alpha=(1 - self.keep) * factor)
        return factor

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"mean": self.mean}

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        mean = state["mean"]
        self.mean = None if mean is None else [piece.to(device) for piece in mean]
