"""The mixture of two policies that a newcomer is taught at first: as near to itself as the team bears.

    target ∝ incumbent^(1/(1+λ)) · newcomer^(λ/(1+λ))

λ = 0 is the incumbent and λ = ∞ the newcomer. Of each state the largest λ is taken at which the incumbent is
within a bound of the target: KL(incumbent ‖ target) ≤ bound, the direction in which what teammates see
changes.
Source: the first stage of SAT, arXiv:2605.05216, whose λ is found by bisection too.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

STEPS: Final = 20  # halvings: the exponent λ/(1+λ) is found to one in a million


def mixture(incumbent: Tensor, newcomer: Tensor, exponent: Tensor) -> Tensor:
    """Log probabilities (N, V) of the mixture of two policies, whose log probabilities these are.

    Args:
        incumbent, newcomer: (N, V), each row summing to one.
        exponent: (N,) λ / (1 + λ), from 0 (the incumbent) to 1 (the newcomer).
    """
    return torch.lerp(incumbent, newcomer, exponent[:, None]).log_softmax(-1)


def largest_exponent(incumbent: Tensor, newcomer: Tensor, bound: float, steps: int = STEPS) -> Tensor:
    """The largest exponent (N,) whose mixture keeps KL(incumbent ‖ mixture) ≤ `bound`, by bisection; 1 where
    the newcomer itself does.

    With r = log newcomer - log incumbent, the divergence at exponent t is log E[exp(t · r)] - t · E[r], both
    expectations under the incumbent. It grows with t, so halving finds where it passes the bound.
    """
    p = incumbent.exp()
    ratio = newcomer - incumbent  # [N, V]
    mean = (p * ratio).sum(-1)  # [N]

    def divergence(exponent: Tensor) -> Tensor:
        return (incumbent + exponent[:, None] * ratio).logsumexp(-1) - exponent * mean

    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    within = divergence(high) <= bound
    for _ in range(steps):
        middle = (low + high) / 2
        fits = divergence(middle) <= bound
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return torch.where(within, torch.ones_like(low), low)


def weight_of(exponent: Tensor) -> Tensor:
    """λ of an exponent λ / (1 + λ); infinite at 1."""
    return exponent / (1 - exponent)
