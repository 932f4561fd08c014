"""Logprobs and entropies of single tokens from (N, V) logits, without (N, V) copies in float32.

A vocabulary has tens of thousands of entries, so the logits of a micro-batch are its largest tensor.
They are kept once, in the dtype of the model; everything else is computed some rows at a time, and the
backward pass computes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 22  # logits in float32 at a time: 16 MiB


def token_logprobs(
    logits: Tensor, targets: Tensor, temperatures: Tensor, entropies: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and the entropy of each distribution in nats if asked for.

    `logits` (N, V) of any float dtype, `targets` and `temperatures` (N,); both results are (N,)
    float32 with gradients, of the distribution at the given temperature.
    """
    logprobs, entropy = _TokenLogprobs.apply(logits, targets, temperatures, entropies)
    return logprobs, entropy if entropies else None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperatures: Tensor, entropies: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        entropy = torch.zeros_like(logprobs)
        for rows in _chunks(logits):
            scaled = logits[rows].float() / temperatures[rows, None]
            chosen = scaled.gather(1, targets[rows, None])[:, 0]
            logprobs[rows] = chosen - scaled.logsumexp(-1)
            if entropies:
                entropy[rows] = torch.special.entr(scaled.softmax(-1)).sum(-1)
        ctx.save_for_backward(logits, targets, temperatures, entropy)
        ctx.entropies = entropies
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropy = gradients
        logits, targets, temperatures, entropy = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows in _chunks(logits):
            p = (logits[rows].float() / temperatures[rows, None]).softmax(-1)
            weight = of_logprobs[rows, None]  # [rows, 1]
            if ctx.entropies:  # dH/dz = -p (log p + H)
                by_entropy = (torch.special.entr(p) - p * entropy[rows, None]) * of_entropy[rows, None]
                gradient = by_entropy.sub_(p.mul_(weight))
            else:
                gradient = p.mul_(-weight)
            gradient.scatter_add_(1, targets[rows, None], weight)
            out[rows] = gradient.div_(temperatures[rows, None])
        return out, None, None, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK // logits.shape[1])
    for start in range(0, len(logits), size):
        yield slice(start, start + size)
