"""Token losses as pure functions over flat tensors: one entry per response token, no padding.

Legend: N response tokens of one micro-batch. Everything is returned as a sum, never as a mean, so
that sums over micro-batches and ranks add up to exactly what one large batch gives; whoever holds
the global token count divides. Leaves out, compared with PPO: the value loss and the entropy bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) = 4.9e8 still fits in float32 and keeps sums finite


@dataclass(frozen=True, slots=True)
class TokenSums:
    """What one micro-batch adds to a step. `loss` carries the graph; the rest is detached float64.

    `clipped` counts the tokens whose gradient a clip removed.
    """

    loss: Tensor
    num_tokens: Tensor
    kl_old: Tensor
    clipped: Tensor
    ratio_max: Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of `values` where `mask`; NaN and infinity elsewhere do not matter, and no entry gives 0."""
    return torch.where(mask, values, 0).sum()


def clamped_log_ratio(new_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """`new - old`, limited to ±20, with the gradient of the unlimited difference.

    A plain clamp has no gradient beyond its limits, which would leave exactly the tokens that moved
    too far without a force that brings them back.
    """
    difference = new_logprobs - old_logprobs
    limited = difference.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference + (limited - difference.detach())


def k3(log_ratio: Tensor) -> Tensor:
    """Per-token estimate of KL(p‖q) from samples of p, with `log_ratio` = log q - log p. Never negative.

    Source: the third estimator of http://joschu.net/blog/kl-approx.html.
    """
    return torch.expm1(log_ratio) - log_ratio


def clipped_surrogate(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenSums:
    """PPO's clipped surrogate, summed over the N tokens where `mask`.

    Each token's loss is `max(-A·r, -A·clip(r, 1-clip_low, 1+clip_high))`; where A is negative it is at
    most `-A·dual_clip`, so that one token with a huge ratio can't dominate. All inputs have shape (N,).
    Sources: PPO arXiv:1707.06347, dual clip arXiv:1912.09729.
    """
    # Inputs, not results, are masked: NaN times a zero gradient would still be NaN.
    zero = torch.zeros((), dtype=new_logprobs.dtype, device=new_logprobs.device)
    new_logprobs = torch.where(mask, new_logprobs, zero)
    old_logprobs = torch.where(mask, old_logprobs, zero)
    advantages = torch.where(mask, advantages, zero)

    log_ratio = clamped_log_ratio(new_logprobs, old_logprobs)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, clipped)
    was_clipped = clipped > unclipped
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        too_large = (advantages < 0) & (losses > ceiling)
        losses = torch.where(too_large, ceiling, losses)
        was_clipped = was_clipped | too_large
    return TokenSums(
        loss=masked_sum(losses, mask),
        num_tokens=mask.sum(dtype=torch.float64),
        kl_old=masked_sum(k3(log_ratio.detach().double()), mask),
        clipped=(was_clipped & mask).sum(dtype=torch.float64),
        ratio_max=torch.where(mask, ratio.detach().double(), 0.0).amax(),
    )


@dataclass(frozen=True, slots=True)
class SamplerGap:
    """How far the sampler's logprobs are from the trainer's own, of the same weights. Sums, detached."""

    num_tokens: Tensor
    absolute: Tensor
    kl: Tensor  # k3 of behaviour against the trainer's old policy
    maximum: Tensor


def sampler_gap(old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor) -> SamplerGap:
    """Compare the trainer's logprobs from before the step with the sampler's, over the (N,) tokens."""
    zero = torch.zeros((), dtype=torch.float64, device=old_logprobs.device)
    log_ratio = torch.where(mask, old_logprobs.detach().double() - behaviour_logprobs.double(), zero)
    return SamplerGap(
        num_tokens=mask.sum(dtype=torch.float64),
        absolute=log_ratio.abs().sum(),
        kl=k3(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).sum(),
        maximum=log_ratio.abs().amax(),
    )
