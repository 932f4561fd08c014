"""How far a newcomer is from the model whose place it takes, on what that model said. Pure.

A message's log ratio is log newcomer - log predecessor, of all its tokens together. Where the two have other
vocabularies, each counts its own tokens of the same text, so a sum is comparable and a mean over tokens is
not: there, nats per character are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Key = tuple[str, int]  # episode_id and turn_index


@dataclass(frozen=True, slots=True)
class Reach:
    """What the newcomer's words would do to one teammate, or its own later turns.

    Effective sample sizes are shares of the episodes: what is left of stored plays if the newcomer's messages
    before (`prefix`) or after (`suffix`) the teammate's first turn are weighed by how likely they are now.
    """

    model: str
    prefix: float
    suffix: float
    episodes: int


@dataclass(frozen=True, slots=True)
class Shock:
    """D_swap and its like: the divergence of the predecessor's messages, and what it does to teammates."""

    per_message: float  # KL(predecessor ‖ newcomer), k1: mean of minus the log ratio
    error: float  # its standard error over messages
    per_token: float | None  # None where the vocabularies differ
    per_character: float
    messages: int
    teammates: tuple[Reach, ...] = ()

    @property
    def order(self) -> list[str]:
        """The teammates, those with the fewest usable stored plays first."""
        return [r.model for r in sorted(self.teammates, key=lambda r: (r.prefix, r.suffix, r.model))]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def effective_share(log_weights: Sequence[float]) -> float:
    """(Σ w)² / (n Σ w²) of n weights: 1 where all are equal, 1/n where one has everything.

    Weights are taken whole: cut at a limit, those of a stranger would all be equally small, and look equal.
    """
    if not len(log_weights):
        return 1.0
    logs = np.asarray(log_weights, dtype=np.float64)
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def shock_of(
    log_ratios: Mapping[Key, float],
    tokens: Mapping[Key, int] | None,
    characters: Mapping[Key, int],
    turns: Sequence[tuple[str, int, str]],
    model: str,
) -> Shock:
    """Measure a newcomer on stored turns.

    Args:
        log_ratios: of each message of the predecessor.
        tokens: how many each has; None where the vocabularies differ.
        characters: likewise.
        turns: `(episode_id, turn_index, model_id)` of all turns of these episodes, of all models.
        model: whose place is taken.
    """
    values = [log_ratios[key] for key in sorted(log_ratios)]
    count = len(values)
    mean = -math.fsum(values) / count
    spread = math.sqrt(math.fsum((-v - mean) ** 2 for v in values) / (count - 1)) if count > 1 else 0.0
    total = -math.fsum(values)
    counted = None if tokens is None else sum(tokens[key] for key in log_ratios)
    return Shock(
        per_message=mean,
        error=spread / math.sqrt(count),
        per_token=None if counted is None else total / max(1, counted),
        per_character=total / max(1, sum(characters[key] for key in log_ratios)),
        messages=count,
        teammates=tuple(_reaches(log_ratios, turns, model)),
    )


def _reaches(
    log_ratios: Mapping[Key, float], turns: Sequence[tuple[str, int, str]], model: str
) -> list[Reach]:
    of_episode: dict[str, list[tuple[int, float]]] = {}
    for (episode, turn), ratio in log_ratios.items():
        of_episode.setdefault(episode, []).append((turn, ratio))
    spoken: dict[str, dict[str, int]] = {}  # by teammate and episode, its first turn
    for episode, turn, other in turns:
        if other != model and episode in of_episode:
            first = spoken.setdefault(other, {})
            first[episode] = min(turn, first.get(episode, turn))
    reaches = []
    for other in sorted(spoken):
        first = spoken[other]
        before = [math.fsum(r for turn, r in of_episode[e] if turn < at) for e, at in sorted(first.items())]
        after = [math.fsum(r for turn, r in of_episode[e] if turn > at) for e, at in sorted(first.items())]
        reaches.append(Reach(other, effective_share(before), effective_share(after), len(first)))
    return reaches
