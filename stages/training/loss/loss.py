"""What an update minimises, as pure functions over flat tensors: one entry per response token, no padding.

Legend: N response tokens of one micro-batch, R responses. Everything is returned as a sum, never as a
mean, so that sums over micro-batches and ranks add up to exactly what one large batch gives; whoever
holds the counts of the whole optimizer step divides by `denominator`. A response is never split over
two micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from rewards.credit.moments import Moments
from stages.training.loss.batch import Terms, TokenBatch
from stages.training.loss.kl import clamped_log_ratio, k3, kl_estimate, masked_sum
from stages.training.loss.policy import POLICY_LOSSES, TokenLoss
from stages.training.loss.spec import LossSpec
from workflows.errors import SchemaError

_FLOAT32: Final = 2.5e-7  # returns come in single precision: two steps of it


@dataclass(frozen=True, slots=True)
class TokenSums:
    """What one micro-batch adds to a step. `loss` carries the graph; the rest is detached float64.

    `loss` and `policy` are to be divided by `denominator`, the others by the number of tokens.
    """

    loss: Tensor
    policy: Tensor  # the part of `loss` without KL and entropy
    num_tokens: Tensor
    kl_old: Tensor  # k3
    kl_reference: Tensor  # of the spec's estimator; 0 without a reference
    entropy: Tensor  # 0 without entropies
    clipped: Tensor  # tokens that a clip acted on
    dual_clipped: Tensor  # those of them that the dual clip stopped
    ratio_max: Tensor
    importance_weight: Tensor
    importance_weight_max: Tensor
    importance_masked: Tensor  # tokens that the sampler correction takes out
    chosen: Tensor  # tokens that the loss holds back for their covariance


def terms_of(spec: LossSpec, roles: Sequence[str | None], row: Tensor) -> Terms:
    """The terms of each token, from the role of each of the R responses and `row` (N,)."""
    of_role = {role: spec.of(role) for role in dict.fromkeys(roles)}

    def per_token(name: str) -> Tensor:
        values = [float(getattr(of_role[role], name)) for role in roles]
        return torch.tensor(values, dtype=torch.float32, device=row.device)[row]

    return Terms(
        clip_low=per_token("clip_low"),
        clip_high=per_token("clip_high"),
        kl_coefficient=per_token("kl_coefficient"),
        entropy_coefficient=per_token("entropy_coefficient"),
        weight=per_token("weight"),
    )


def token_weights(spec: LossSpec, mask: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """How much each token counts before the division by `denominator`, (N,) float32; 0 where masked."""
    counted = mask.to(torch.float32)
    if spec.normalisation != "sequence_mean":
        return counted
    lengths = torch.zeros(num_rows, dtype=torch.float32, device=mask.device).index_add(0, row, counted)
    return counted / lengths.clamp(min=1)[row]


def denominator(spec: LossSpec, num_tokens: float, num_rows: float) -> float:
    """What the summed loss of a whole optimizer step is divided by; 1 for a step of no tokens.

    `num_tokens` and `num_rows` count unmasked tokens, and responses that have one, over all ranks.
    """
    if not num_tokens:
        return 1.0
    if spec.normalisation == "token_mean":
        return float(num_tokens)
    return float(num_rows) * (spec.fixed_length or 1 if spec.normalisation == "fixed_length" else 1)


def policy_loss(spec: LossSpec, batch: TokenBatch) -> TokenSums:
    """The loss of `spec`, summed over the tokens of one micro-batch with their weights.

    Per token: `weight · (importance · policy loss + kl_coefficient · KL - entropy_coefficient · entropy)`,
    where the weight is that of the normalisation times that of the role.

    A loss of your own, `package.module:function`, is called with the spec and the batch (masked entries
    zero) and returns an (N,) tensor or a `TokenLoss`.

    Raises:
        SchemaError: a loss of your own returned something else, or the batch lacks what the spec needs.
    """
    _check_complete(spec, batch)
    batch = _cleaned(batch)
    mask, terms = batch.mask, batch.terms
    token = _token_losses(spec, batch)
    policy = token.losses
    importance = batch.importance_weights
    if importance is not None:
        policy = policy * importance
    total, measured = policy, dict.fromkeys(("kl_reference", "entropy"), torch.zeros((), dtype=torch.float64))
    if batch.reference_logprobs is not None:
        kl = kl_estimate(batch.new_logprobs, batch.reference_logprobs, spec.kl_estimator)
        measured["kl_reference"] = masked_sum(kl.detach().double(), mask)
        if spec.needs_reference:
            total = total + terms.kl_coefficient * kl
    if batch.entropies is not None:
        measured["entropy"] = masked_sum(batch.entropies.detach().double(), mask)
        if spec.needs_entropy:
            total = total - terms.entropy_coefficient * batch.entropies
    weights = batch.weights * terms.weight
    log_ratio = clamped_log_ratio(batch.new_logprobs.detach(), batch.old_logprobs).double()
    ones = torch.ones_like(log_ratio) if importance is None else importance.double()
    return TokenSums(
        loss=masked_sum(total * weights, mask),
        policy=masked_sum(policy.detach().double() * weights.double(), mask),
        num_tokens=mask.sum(dtype=torch.float64),
        kl_old=masked_sum(k3(log_ratio), mask),
        clipped=_count(token.clipped, mask),
        dual_clipped=_count(token.dual_clipped, mask),
        ratio_max=torch.where(mask, log_ratio.exp(), 0.0).amax(),
        importance_weight=masked_sum(ones, mask),
        importance_weight_max=torch.where(mask, ones, 0.0).amax(),
        importance_masked=_count(ones == 0, mask),
        chosen=_count(batch.chosen, mask),
        **measured,
    )


@dataclass(frozen=True, slots=True)
class ValueSums:
    """What one micro-batch adds to a critic's step. `loss` carries the graph; the rest is detached float64.

    `returns` are the moments of the returns, and `errors` those of what the values from before the update
    left unexplained: `explained_variance` puts them together.
    """

    loss: Tensor
    num_tokens: Tensor
    clipped: Tensor
    returns: Moments
    errors: Moments


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    weights: Tensor,
    clip: float | None,
) -> ValueSums:
    """`0.5 · max((V - R)², (V' - R)²)` per token, summed with `weights`; all tensors (N,).

    V' is V held within `clip` of `old_values`, the values from before the update; None is off.
    Source: PPO2 of OpenAI baselines, in the form of arXiv:2005.12729.
    """
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    values, old_values, returns = (
        torch.where(mask, t.to(values.dtype), zero) for t in (values, old_values, returns)
    )
    squared = (values - returns) ** 2
    was_clipped = torch.zeros_like(mask)
    if clip is not None:
        held = old_values + (values.detach() - old_values).clamp(-clip, clip)
        bound = (held - returns) ** 2  # held beyond the bound: no gradient there
        was_clipped = bound > squared.detach()
        squared = torch.where(was_clipped, bound, squared)
    exact, errors = returns.double(), (returns.double() - old_values.double())
    return ValueSums(
        loss=masked_sum(0.5 * squared * weights, mask),
        num_tokens=mask.sum(dtype=torch.float64),
        clipped=_count(was_clipped, mask),
        returns=Moments.of(exact[mask].cpu().numpy()),
        errors=Moments.of(errors[mask].detach().cpu().numpy()),
    )


def explained_variance(returns: Moments, errors: Moments) -> float | None:
    """1 - Var(R - V) / Var(R) over tokens; None where the returns do not vary but for rounding.

    Each variance is of numbers around their own mean, so that it is right for returns far from 0 too.
    """
    apart = returns.high - returns.low
    if returns.count < 1 or apart <= _FLOAT32 * max(abs(returns.low), abs(returns.high)):
        return None
    return 1 - errors.squares / returns.squares


def _check_complete(spec: LossSpec, batch: TokenBatch) -> None:
    for needed, value, name in (
        (spec.needs_reference, batch.reference_logprobs, "reference_logprobs"),
        (spec.needs_entropy, batch.entropies, "entropies"),
        (spec.chooses_tokens, batch.chosen, "chosen tokens"),
    ):
        if needed and value is None:
            raise SchemaError(f"loss {spec.name!r} needs {name}, and the batch has none")


def _cleaned(batch: TokenBatch) -> TokenBatch:
    """Masked entries as zeros: inputs, not results, for NaN times a zero gradient would still be NaN."""
    zero = torch.zeros((), dtype=batch.new_logprobs.dtype, device=batch.new_logprobs.device)
    names = ("new_logprobs", "old_logprobs", "advantages", "importance_weights")
    clean: dict[str, Any] = {}
    for name in (*names, "reference_logprobs", "entropies"):
        value = getattr(batch, name)
        clean[name] = None if value is None else torch.where(batch.mask, value, zero)
    return replace(batch, **clean)


def _token_losses(spec: LossSpec, batch: TokenBatch) -> TokenLoss:
    token = _function(spec.name)(spec, batch)
    if isinstance(token, Tensor):
        token = TokenLoss(token)
    if not isinstance(token, TokenLoss) or token.losses.shape != batch.mask.shape:
        got = tuple(token.losses.shape) if isinstance(token, TokenLoss) else type(token).__name__
        raise SchemaError(
            f"loss {spec.name!r} returned {got}; return one loss for each of the {batch.mask.numel()} tokens"
        )
    return token


@functools.cache
def _function(name: str) -> Any:
    from workflows.plugins import load_function

    return load_function(name, "loss") if ":" in name else POLICY_LOSSES[name]


def _count(where: Tensor | None, mask: Tensor) -> Tensor:
    if where is None:
        return torch.zeros((), dtype=torch.float64, device=mask.device)
    return (where & mask).sum(dtype=torch.float64)
