"""Which tokens move the entropy most: the covariance of a token's logprob and its advantage. Pure functions.

A step of a policy gradient changes the policy's entropy by minus the covariance, over the policy's own
tokens, of log π and the advantage. A few tokens have nearly all of it, so holding those back keeps the
entropy. Source: clip-cov and kl-cov of "The entropy mechanism of reinforcement learning for reasoning
language models", arXiv:2505.22617.

Here logprobs are those of the policy at the start of the update, not of the step: in the update's first
optimizer step the two are the same, and a choice that is made before the first step is the same however the
step is cut into forward passes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stages.training.loss.spec import LossSpec

Floats = NDArray[np.float64]


def token_sums(logprobs: Floats, advantages: Floats) -> Floats:
    """Number of tokens, sum of logprobs and sum of advantages, (3,): they add up over micro-batches."""
    return np.array([len(logprobs), logprobs.sum(), advantages.sum()])


def covariances(logprobs: Floats, advantages: Floats, sums: Floats) -> Floats:
    """`(log π - mean log π) · (A - mean A)` of each token, (N,); the means are of all tokens of the step."""
    count, logprob, advantage = sums
    return (logprobs - logprob / count) * (advantages - advantage / count)


def sort_keys(spec: LossSpec, covariance: Floats, random: Floats) -> Floats:
    """Two columns, (N, 2), by which tokens are chosen, lowest first; infinite for one that can't be.

    clip_cov chooses at random among covariances from `cov_low` to `cov_high`; kl_cov takes the highest
    covariances, and lets `random` decide between equal ones.
    """
    if spec.name == "clip_cov":
        within = (covariance >= spec.cov_low) & (covariance <= spec.cov_high)
        first = np.where(within, 0.0, np.inf)
    else:
        first = -covariance
    return np.stack([first, random], axis=1)


def number_chosen(spec: LossSpec, num_tokens: int) -> int:
    """How many tokens of a step are chosen at most: its share of them, rounded up."""
    return math.ceil(spec.cov_share * num_tokens)


def lowest(keys: Floats, number: int) -> Floats:
    """The lowest `number` of the finite keys, sorted, at most (number, 2)."""
    finite = keys[np.isfinite(keys[:, 0])]
    return finite[np.lexsort((finite[:, 1], finite[:, 0]))][:number]


def chosen_of(keys: Floats, last: Floats) -> NDArray[np.bool_]:
    """Which tokens have a key that is not above `last` (2,), (N,)."""
    return (keys[:, 0] < last[0]) | ((keys[:, 0] == last[0]) & (keys[:, 1] <= last[1]))
