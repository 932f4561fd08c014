"""The loss of a reward model: of two plays, the one that earned more is to get the higher score.

-log σ(r_w - r_l), the likelihood of a pair under Bradley and Terry (Biometrika 39, 1952), as reward models
are trained (arXiv:2203.02155, equation 1; arXiv:2606.13598 for whole orchestrations).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class PairSums:
    """Of the pairs of one optimizer step. `loss` is what is minimised."""

    loss: Tensor  # ()
    likelihood: float  # mean of -log σ(r_w - r_l), in nats
    right: float  # share of the pairs in the right order; a tie counts half
    margin: float  # mean of r_w - r_l


def pair_loss(scores: Tensor, winners: Tensor, losers: Tensor, centring: float = 0.0) -> PairSums:
    """Mean over pairs of -log σ(r_w - r_l) + centring · (r_w + r_l)².

    Args:
        scores: of plays, (N,).
        winners, losers: places in `scores`, (P,) int64.
        centring: weight of what keeps the scores of a pair around 0, which their difference leaves open
            (arXiv:2312.09244).
    """
    won, lost = scores[winners], scores[losers]  # [P]
    difference = won - lost
    likelihood = functional.softplus(-difference).mean()
    loss = likelihood + centring * (won + lost).square().mean() if centring else likelihood
    told = difference.detach()
    right = ((told > 0).double() + 0.5 * (told == 0).double()).mean()
    return PairSums(loss, float(likelihood.detach()), float(right), float(told.mean()))


def pair_gradient(
    scores: Tensor, winners: Tensor, losers: Tensor, centring: float = 0.0
) -> tuple[Tensor, PairSums]:
    """The gradient of `pair_loss` by each score, (N,), and its sums.

    A play's score is then trained by itself: its gradient times the score has the gradient of the whole loss,
    however plays are spread over forward passes and ranks.
    """
    free = scores.detach().clone().requires_grad_(True)
    sums = pair_loss(free, winners, losers, centring)
    (gradient,) = torch.autograd.grad(sums.loss, free)
    return gradient, sums
