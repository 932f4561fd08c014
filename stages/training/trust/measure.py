"""Divergences of tokens, surrogates of messages and the certificate of an update: arithmetic alone.

Functions of tensors keep the type of their inputs. Log ratios are log new - log start, of tokens that the
policy at the start of the block has sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stages.training.loss.kl import LOG_RATIO_LIMIT, k3
from stages.training.trust.spec import Direction, TrustSpec

TINY = 1e-12  # probability that is left for all outcomes that were not looked at, at least


def token_divergence(log_ratio: Tensor, estimator: str, direction: Direction) -> Tensor:
    """An estimate for each sampled token: k1 has a sign, k3 has less variance and is never negative.

    "start_to_new" is KL(start ‖ new) = E[-log r], "new_to_start" KL(new ‖ start) = E[r log r], both over
    tokens that the start sampled, with r = new / start.
    """
    if direction == "start_to_new":
        return -log_ratio if estimator == "k1" else k3(log_ratio)
    weighted = log_ratio.exp() * log_ratio
    return weighted if estimator == "k1" else weighted - torch.expm1(log_ratio)


def exact_divergence(start: Tensor, new: Tensor, direction: Direction) -> Tensor:
    """The divergence of whole distributions: log probabilities (..., outcomes) that each sum to one."""
    p, q = (start, new) if direction == "start_to_new" else (new, start)
    return (p.exp() * (p - q)).sum(-1)


def with_rest(logprobs: Tensor) -> Tensor:
    """Log probabilities (N, k) of some outcomes, and (N, 1) of all others together: (N, k + 1).

    The divergence of these is a lower bound on that of all outcomes, and equal where k is all of them.
    """
    rest = (1 - logprobs.exp().sum(-1, keepdim=True)).clamp_min(TINY)
    return torch.cat([logprobs, rest.log()], -1)


def surrogate(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """What the new policy is expected to gain on messages that the start sampled: (r - 1) · A for each."""
    return torch.expm1(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) * advantages


def deviation_bound(divergence: float, turns: int, return_range: float) -> float:
    """How far the surrogate of one unit may be from its gain: 2 (m - 1) √(D / 2) R.

    Only earlier turns of the unit itself can move its contexts, so a unit that speaks once (m = 1) has 0.
    Holds for one speaker at a time: joins and parallel branches are outside it.

    Args:
        divergence: per episode, summed over its turns, from the start to the new policy.
        turns: m, the most turns of the unit in an episode.
        return_range: R, the difference of the highest and the lowest return.
    """
    return 2 * (turns - 1) * math.sqrt(max(divergence, 0.0) / 2) * return_range


@dataclass(frozen=True, slots=True)
class Message:
    """What was measured of one row."""

    divergence: float  # sum over its tokens
    k3: float  # KL(start ‖ new), likewise, whatever the measure
    log_ratio: float  # sum over its tokens
    advantage: float  # mean over its tokens
    tokens: int
    of_tokens: tuple[float, ...] = ()  # the divergence of each, where these are the unit of measure


@dataclass(frozen=True, slots=True)
class Measured:
    """How far a policy is from the start of the block, over all ranks.

    `surrogate` is the mean over episodes of the sum over their messages, `error` its standard error.
    """

    divergence: float  # in the measure of the radius
    per_episode: float  # k3 of KL(start ‖ new), summed over an episode's messages, mean
    surrogate: float
    error: float
    turns: int
    messages: int
    by_row: Mapping[tuple[str, int], Message] = field(default_factory=dict)

    def certificate(self, spec: TrustSpec) -> float:
        """A lower bound on the gain: surrogate - z · error - bound. See `deviation_bound`.

        It is of the rows that were trained on, whose surrogate is optimistic.
        """
        bound = deviation_bound(self.per_episode, self.turns, spec.return_range)
        return self.surrogate - spec.z * self.error - bound


def measured(spec: TrustSpec, rows: Mapping[tuple[str, int], Message]) -> Measured:
    """The numbers of an update by those of its messages, which are added up in the order of their keys."""
    ordered = dict(sorted(rows.items()))
    episodes: dict[str, list[Message]] = {}
    for (episode, _), message in ordered.items():
        episodes.setdefault(episode, []).append(message)
    of_episodes = list(episodes.values())
    values = {
        "token": [value for m in ordered.values() for value in m.of_tokens],
        "message": [m.divergence for m in ordered.values()],
        "episode": _sums((m.divergence for m in each) for each in of_episodes),
    }[spec.measure]
    gains = _sums(_gains(each) for each in of_episodes)
    return Measured(
        divergence=_summary(values, spec.quantile),
        per_episode=_summary(_sums((m.k3 for m in each) for each in of_episodes), 0.0),
        surrogate=_summary(gains, 0.0),
        error=float(np.std(gains, ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else 0.0,
        turns=max((len(each) for each in of_episodes), default=0),
        messages=len(ordered),
        by_row=ordered,
    )


def _gains(messages: Sequence[Message]) -> list[float]:
    ratios = torch.tensor([m.log_ratio for m in messages], dtype=torch.float64)
    advantages = torch.tensor([m.advantage for m in messages], dtype=torch.float64)
    return [float(gain) for gain in surrogate(ratios, advantages)]


def _sums(of_episodes: Iterable[Iterable[float]]) -> list[float]:
    return [math.fsum(each) for each in of_episodes]


def _summary(values: Sequence[float], quantile: float) -> float:
    """The mean, or above 0 this quantile; 0 of nothing."""
    if not values:
        return 0.0
    return float(np.quantile(values, quantile)) if quantile else math.fsum(values) / len(values)
