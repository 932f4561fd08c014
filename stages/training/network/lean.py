"""Normalisations and gated activations that keep less for their backward pass than plain torch code does.

The usual code of a Llama-like layer keeps float32 copies of its states for each RMSNorm, and the activated
gate beside the gate. Here the backward pass computes both again from what is kept anyway, elementwise, so it
costs little time; forward results are the same bits. Modules that don't prove to compute just this stay.

Legend: x (…, d) states in the model's dtype, w (d,) the weight of a norm, g and u (…, f) gate and up.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

TRIAL_ROWS: Final = 3


class _RmsNorm(torch.autograd.Function):
    """w · x / sqrt(mean(x²) + eps), in float32 and rounded before the weight (arXiv:1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)  # (…, 1)
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, scale = ctx.saved_tensors
        normal = x.float() * scale  # (…, d) float32
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (gradient * normal.to(x.dtype)).flatten(0, -2).sum(0)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_normal = (gradient * weight).float()
            along = (of_normal * normal).mean(-1, keepdim=True)
            of_x = of_normal.addcmul_(normal, along, value=-1).mul_(scale).to(x.dtype)
        return of_x, of_weight, None


class _GatedSilu(torch.autograd.Function):
    """silu(g) · u (SwiGLU, arXiv:2002.05202)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return of_gate, silu(gate).mul_(gradient)


def save_less(model: nn.Module) -> int:
    """Change the norms and feed-forward layers of a model that compute what is computed here.

    Each is tried on made states first: where a single bit of its result would differ, or it is built in
    another way, it stays as it is. Returns how many were changed.
    """
    changed = 0
    for module in model.modules():
        forward = _lean_forward(module)
        if forward is not None and _is_same(module, forward):
            module.forward = MethodType(forward, module)
            changed += 1
    return changed


def _lean_forward(module: nn.Module) -> Any:
    children = dict(module.named_children())
    name = type(module).__name__
    if name.endswith("RMSNorm") and not children and hasattr(module, "variance_epsilon"):
        return _norm
    if name.endswith("MLP") and {"gate_proj", "up_proj", "down_proj"} <= children.keys():
        return _feed_forward
    return None


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    out: Tensor = _RmsNorm.apply(hidden_states, self.weight, self.variance_epsilon)
    return out


def _feed_forward(self: Any, x: Tensor) -> Tensor:
    out: Tensor = self.down_proj(_GatedSilu.apply(self.gate_proj(x), self.up_proj(x)))
    return out


def _is_same(module: nn.Module, forward: Any) -> bool:
    """Whether the module's own forward pass gives the same bits, for states of either sign and any size."""
    weight = next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, TRIAL_ROWS, weight.shape[-1], generator=generator) * 3
    states = states.to(weight.dtype).to(weight.device)
    with torch.no_grad():
        try:
            expected, found = module(states), forward(module, states)
        except (RuntimeError, TypeError, AttributeError):
            return False
    return torch.is_tensor(expected) and torch.equal(expected, found)
