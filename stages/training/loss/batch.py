"""The tokens of one micro-batch, flat, as every loss sees them. Values only; the arithmetic is beside it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """What the loss of each token has of its role, all (N,) float32. Made by `terms_of`."""

    clip_low: Tensor
    clip_high: Tensor
    kl_coefficient: Tensor
    entropy_coefficient: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of one micro-batch; all tensors are (N,), masked entries may hold anything.

    `new_logprobs` and `entropies` carry the graph. None where the loss does not need it:
    `importance_weights` (then 1), `reference_logprobs` (`LossSpec.needs_reference`), `entropies`
    (`LossSpec.needs_entropy`; without a graph they are only measured), `chosen` (`LossSpec.chooses_tokens`).
    """

    new_logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor  # bool
    row: Tensor  # int64: which of the `num_rows` responses a token belongs to
    num_rows: int
    weights: Tensor  # by `token_weights`
    terms: Terms
    importance_weights: Tensor | None = None
    reference_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    chosen: Tensor | None = None  # bool: the tokens that the loss holds back
