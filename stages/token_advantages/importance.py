"""Correction for the gap between the sampler and the trainer, which differ in kernels and precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stages.token_advantages.ragged import Bools, Floats, Ints, row_of

Correction = Literal["none", "truncated", "masked"]
Level = Literal["token", "sequence"]
_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class Importance:
    """How old policy over sampler, w, weighs a token's loss.

    "truncated" takes min(w, cap) (arXiv:1802.01561, for this gap: Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training"); "masked" takes w where it lies between
    floor and cap, and leaves the token out elsewhere (arXiv:2510.18855). `level` "sequence" takes the
    product over a turn's tokens for all of them.
    """

    correction: Correction = "none"
    level: Level = "token"
    cap: float = 2.0
    floor: float = 0.0


def importance_ratios(
    method: Importance, old: Floats, behaviour: Floats, mask: Bools, lengths: Ints
) -> Floats:
    """Old policy over sampler for each token, or for its turn, (N,), before any cut; 1 where not `mask`."""
    log_ratio = np.where(mask, old - behaviour, 0.0)
    if method.level == "sequence":
        rows = row_of(lengths)
        log_ratio = np.bincount(rows, weights=log_ratio, minlength=len(lengths))[rows]
    return np.where(mask, np.exp(np.clip(log_ratio, -_LIMIT, _LIMIT)), 1.0)


def importance_weights(method: Importance, ratio: Floats, mask: Bools) -> Floats:
    """The weight of each token, (N,): its ratio, cut; 1 where not `mask`. Never called for "none"."""
    if method.correction == "truncated":
        weights = np.minimum(ratio, method.cap)
    else:
        weights = np.where((ratio >= method.floor) & (ratio <= method.cap), ratio, 0.0)
    return np.where(mask, weights, 1.0)
