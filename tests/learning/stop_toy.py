"""The algebra of stop credit on a toy, through the product's own losses and values.

The chance to be right drifts from decision to decision, and a later one may spoil it; the policy sees it with
noise, and stops by a logistic rule. The hazard objective must have the value and the gradient of REINFORCE on
the same traces, at a sixth to a seventh of its variance in an episode, and its rule must beat the best fixed
decision. Specification: B.7.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch

from rewards.stopping.traces import Floats, Traces, expected, logit_gradient
from stages.training.loss.spec import LossSpec
from stages.training.loss.stopping import StopBatch, stop_loss

POINTS: Final = 8
PRICE: Final = 0.06
HAZARD: Final = LossSpec(stop_loss="hazard")
RATIOS: Final = (6.0, 7.0)  # of variances, which the specification measured as 6.1 and 6.8


@dataclass(frozen=True, slots=True)
class Toy:
    """What the toy measured. Gradients are by the rule's constant and its slope."""

    seed: int
    value: tuple[float, float]  # hazard, REINFORCE
    gradient: tuple[tuple[float, ...], tuple[float, ...]]
    error: float  # largest gap of gradients, in standard errors
    ratios: tuple[float, ...]
    learned: float
    fixed: float
    hindsight: float

    @property
    def reached(self) -> bool:
        low, high = RATIOS
        equal = self.error < 4 and abs(self.value[0] - self.value[1]) < 0.005
        return equal and all(low - 0.3 < r < high + 0.3 for r in self.ratios) and self.learned > self.fixed

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}

    def line(self) -> str:
        one, other = (", ".join(f"{g:.4f}" for g in gradient) for gradient in self.gradient)
        return (
            f"  seed {self.seed}: value {self.value[0]:.4f} and {self.value[1]:.4f}, gradient ({one}) and "
            f"({other}), {self.error:.1f} standard errors apart; variance {self.ratios[0]:.1f} and "
            f"{self.ratios[1]:.1f} times lower; learned rule {self.learned:.3f}, best fixed "
            f"{self.fixed:.3f}, hindsight {self.hindsight:.3f}   {'reached' if self.reached else 'short'}"
        )


def run(folder: str, seeds: Sequence[int]) -> list[Toy]:
    """The toy once for each seed."""
    return [play(seed) for seed in seeds]


def play(seed: int, traces: int = 200_000, updates: int = 400) -> Toy:
    """Compare gradients on so many traces, then learn a rule in so many updates."""
    luck = np.random.default_rng(seed)
    rule = np.array([-3.0, 4.0])
    right, seen = drawn(luck, traces)
    value, exact = by_hazard(luck.binomial(1, right).astype(float), seen, rule)
    other, sampled = by_reinforce(luck, right, seen, rule)
    errors = np.sqrt((exact.var(0) + sampled.var(0)) / traces)
    learned = learn(luck, updates)
    right, seen = drawn(luck, traces)
    utility = right - PRICE * np.arange(POINTS)
    return Toy(
        seed,
        (value, other),
        (tuple(exact.mean(0)), tuple(sampled.mean(0))),
        float((np.abs(exact.mean(0) - sampled.mean(0)) / errors).max()),
        tuple(sampled.var(0) / exact.var(0)),
        by_hazard(right, seen, learned)[0],
        float(utility.mean(0).max()),
        float(utility.max(1).mean()),
    )


def drawn(luck: np.random.Generator, traces: int) -> tuple[Floats, Floats]:
    """The chance to be right at each decision, and what the policy sees of it, (traces, POINTS) each."""
    right = np.zeros((traces, POINTS))
    right[:, 0] = luck.beta(2, 4, traces)
    for point in range(1, POINTS):
        step = luck.normal(0.09, 0.12, traces) - 0.25 * (luck.random(traces) < 0.07)
        right[:, point] = np.clip(right[:, point - 1] + step, 0, 1)
    return right, right + luck.normal(0, 0.1, right.shape)


def by_hazard(score: Floats, seen: Floats, rule: Floats) -> tuple[float, Floats]:
    """The value of a rule and its gradient on each trace, (T, 2), by `stages.training.loss.stopping`."""
    logits = torch.tensor(rule[0] + rule[1] * seen, requires_grad=True)
    sums = stop_loss(HAZARD, batch_of(score, logits))
    (gradient,) = torch.autograd.grad(-sums.loss, logits)
    return float(sums.value) / len(score), on_rule(gradient.numpy(), seen)


def batch_of(score: Floats, logits: torch.Tensor) -> StopBatch:
    """All decisions but the last of each trace, where it ends in any case."""
    utility = torch.tensor(score - PRICE * np.arange(POINTS))
    flat = logits[:, :-1].reshape(-1)
    return StopBatch(
        stop_logprobs=flat,
        continue_logprobs=torch.zeros_like(flat),
        old_logits=flat.detach(),
        utility=utility[:, :-1].reshape(-1),
        continued=torch.zeros_like(flat),
        weight=torch.ones_like(flat),
        trace=torch.arange(len(score)).repeat_interleave(POINTS - 1),
        ends=utility[:, -1],
        num_traces=len(score),
    )


def by_values(score: Floats, seen: Floats, rule: Floats) -> tuple[float, Floats]:
    """The same by `rewards.stopping`: what the tables say of decisions."""
    last = np.full(len(score), POINTS - 1)
    stop = 1 / (1 + np.exp(-(rule[0] + rule[1] * seen)))
    cost = np.broadcast_to(np.arange(POINTS, dtype=float), score.shape)
    learned = np.ones(score.shape, dtype=bool)
    agreement, answer = np.full(score.shape, np.nan), np.full(score.shape, -1)
    traces = Traces(last, score, cost, stop, learned, agreement, answer)
    utility = traces.utility(PRICE)
    gradient = logit_gradient(traces.chance, utility)
    return float(expected(traces.chance, utility).mean()), on_rule(gradient, seen)


def by_reinforce(
    luck: np.random.Generator, right: Floats, seen: Floats, rule: Floats
) -> tuple[float, Floats]:
    """The value of sampled stops, and (R - mean R) times the gradient of their log-probability, (T, 2)."""
    stop = 1 / (1 + np.exp(-(rule[0] + rule[1] * seen)))
    stop[:, -1] = 1.0
    at = (luck.random(stop.shape) < stop).argmax(axis=1)
    rows, places = np.arange(len(stop)), np.arange(POINTS)[None]
    value = luck.binomial(1, right)[rows, at] - PRICE * at
    score = np.where(places < at[:, None], -stop, np.where(places == at[:, None], 1 - stop, 0.0))
    return float(value.mean()), on_rule(score, seen) * (value - value.mean())[:, None]


def on_rule(gradient: Floats, seen: Floats) -> Floats:
    """The gradient by constant and slope of a gradient by logits."""
    return np.stack([gradient.sum(1), (gradient * seen).sum(1)], axis=1)


def learn(luck: np.random.Generator, updates: int) -> Floats:
    """Gradient ascent on traces with one probe at each decision."""
    rule = np.array([-3.0, 1.0])
    for _ in range(updates):
        right, seen = drawn(luck, 256)
        rule = rule + 2.0 * by_hazard(luck.binomial(1, right).astype(float), seen, rule)[1].mean(0)
    return rule
