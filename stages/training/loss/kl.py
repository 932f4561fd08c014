"""Log ratios and what can be estimated from them: KL divergences, and the gap between sampler and trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LOG_RATIO_LIMIT: Final = 20.0  # exp(20) = 4.9e8 still fits in float32 and keeps sums finite


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


def kl_estimate(new_logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """KL(policy ‖ reference) per token, (N,): the value of `estimator`, and the gradient of the true KL.

    With d = log policy - log reference of a sampled token, k1 is d, k2 is d²/2 and k3 is exp(-d) - 1 + d.
    Their values all estimate the KL, their own derivatives do not: that of k1 is zero on average, and
    that of k3 belongs to the KL the other way round. What is right on average, for tokens that the
    policy itself sampled, is d · ∇log policy, the derivative of k2 (arXiv:2510.01555); it is used for
    all three. So the choice of estimator changes what is logged, and never what is learned.
    """
    difference = clamped_log_ratio(new_logprobs, reference_logprobs)
    fixed = difference.detach()
    half_square = difference**2 / 2
    value = {"k1": fixed, "k2": half_square.detach(), "k3": k3(-fixed)}[estimator]
    return half_square + (value - half_square.detach())


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
