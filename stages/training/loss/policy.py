"""The policy losses, one function each: a batch of tokens in, a loss for each token out.

Every function sees masked tokens as zeros and may give them any finite loss: they are taken out
afterwards. Importance weights, role weights, KL and entropy are added outside, once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from stages.training.loss.batch import TokenBatch
from stages.training.loss.kl import LOG_RATIO_LIMIT, clamped_log_ratio, k3
from stages.training.loss.spec import LossSpec


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per token, (N,): the loss with its graph, where a clip acted, and where that was the dual clip."""

    losses: Tensor
    clipped: Tensor | None = None
    dual_clipped: Tensor | None = None


def ppo(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """`max(-A·r, -A·clip(r, 1-clip_low, 1+clip_high))`, at most `-A·dual_clip` where A is negative.

    The last bound keeps one token with a huge ratio from dominating. A clipped token has no gradient.
    Sources: PPO arXiv:1707.06347, dual clip arXiv:1912.09729, bounds apart from each other
    arXiv:2503.14476.
    """
    ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs).exp()
    return _clipped_surrogate(ratio, batch, spec.dual_clip)


def gspo(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """PPO's clip on one ratio per response, the geometric mean of its tokens' ratios.

    All tokens of a response are clipped or none. The gradient reaches each token through its own
    logprob (the paper's token form, which is the sequence form where a response has one advantage).
    No dual clip. Settings that name neither have the paper's normalisation, "sequence_mean", and its clips,
    3e-4 below and 4e-4 above. Source: GSPO, arXiv:2507.18071.
    """
    log_ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs)
    mean = row_mean(log_ratio.detach(), batch)[batch.row]
    ratio = (mean + (batch.new_logprobs - batch.new_logprobs.detach())).exp()
    return _clipped_surrogate(ratio, batch, None)


def message(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """PPO's clip on one ratio per response, the product of its tokens' ratios.

    All tokens of a response are clipped or none. The gradient of a response is -A · (product) · ∇ log π of
    all its tokens, each through its own logprob. No dual clip. Bounds are of whole responses, so they bind
    sooner the longer a response is. Source: TeamTR, arXiv:2605.15207.
    """
    log_ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs)
    whole = row_sum(log_ratio.detach(), batch)[batch.row].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = (whole + (batch.new_logprobs - batch.new_logprobs.detach())).exp()
    return _clipped_surrogate(ratio, batch, None)


def cispo(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """`-A · clip(r, 1-clip_low, 1+clip_high) · log π`, the clipped ratio held fixed.

    So no token loses its gradient, and none weighs more than the clip allows. clip_low = 1 leaves the
    ratio without a lower bound, as in the paper. Source: CISPO, arXiv:2506.13585.
    """
    ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs).detach().exp()
    weight = _clip(ratio, batch)
    return TokenLoss(-batch.advantages * weight * batch.new_logprobs, clipped=weight != ratio)


def clip_cov(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """PPO's clipped loss without the tokens of `chosen`, which have no loss and no gradient.

    They are some of those whose covariance lies between `cov_low` and `cov_high`. The denominator counts
    them. No dual clip. Source: clip-cov, arXiv:2505.22617.
    """
    assert batch.chosen is not None
    ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs).exp()
    surrogate = _clipped_surrogate(ratio, batch, None)
    return TokenLoss(torch.where(batch.chosen, 0, surrogate.losses), surrogate.clipped)


def kl_cov(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """`-A·r`, and `cov_kl_coefficient` · KL(old ‖ new) for the tokens of `chosen`.

    These are the ones of highest covariance. Nothing is clipped. The KL is estimated by r - 1 - log r, whose
    derivative, (r - 1)·∇log π, is that of the true KL on average; the code beside the paper takes |log r|. It
    is 0 in an update's first optimizer step. Source: kl-cov, arXiv:2505.22617.
    """
    assert batch.chosen is not None
    log_ratio = clamped_log_ratio(batch.new_logprobs, batch.old_logprobs)
    price = torch.where(batch.chosen, spec.cov_kl_coefficient * k3(log_ratio), 0)
    return TokenLoss(-batch.advantages * log_ratio.exp() + price)


def policy_gradient(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """`-A · log π`: REINFORCE (Williams 1992). Right for one optimizer step on fresh samples."""
    return TokenLoss(-batch.advantages * batch.new_logprobs)


def supervised(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    """`-A · log π` with A as the weight of a token to imitate: 1 for a demonstration.

    The same arithmetic as `policy_gradient`. What differs lies before it: weights are never negative,
    and rows of weight 0 are left out and not counted (`stages.token_advantages`).
    """
    return TokenLoss(-batch.advantages * batch.new_logprobs)


POLICY_LOSSES: Final[Mapping[str, Callable[[LossSpec, TokenBatch], TokenLoss]]] = {
    "ppo": ppo,
    "gspo": gspo,
    "message": message,
    "cispo": cispo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "policy_gradient": policy_gradient,
    "supervised": supervised,
}


def row_sum(values: Tensor, batch: TokenBatch) -> Tensor:
    """Sum of each response's (N,) values over its unmasked tokens, (num_rows,)."""
    zeros = torch.zeros(batch.num_rows, dtype=values.dtype, device=values.device)
    return zeros.index_add(0, batch.row, torch.where(batch.mask, values, 0))


def row_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean of each response's (N,) values over its unmasked tokens, (num_rows,); 0 for none."""
    counts = row_sum(torch.ones_like(values), batch)
    return row_sum(values, batch) / counts.clamp(min=1)


def _clip(ratio: Tensor, batch: TokenBatch) -> Tensor:
    terms = batch.terms
    return torch.minimum(
        torch.maximum(ratio, 1 - terms.clip_low.to(ratio.dtype)), 1 + terms.clip_high.to(ratio.dtype)
    )


def _clipped_surrogate(ratio: Tensor, batch: TokenBatch, dual_clip: float | None) -> TokenLoss:
    unclipped = -batch.advantages * ratio
    # the bound is a constant: at a ratio of exactly the bound, the gradient is that of the ratio
    clipped = -batch.advantages * _clip(ratio.detach(), batch)
    was_clipped = clipped > unclipped.detach()
    losses = torch.where(was_clipped, clipped, unclipped)
    too_large = torch.zeros_like(was_clipped)
    if dual_clip is not None:
        ceiling = -batch.advantages * dual_clip
        too_large = (batch.advantages < 0) & (losses.detach() > ceiling)
        losses = torch.where(too_large, ceiling, losses)
    return TokenLoss(losses, clipped=was_clipped | too_large, dual_clipped=too_large)
