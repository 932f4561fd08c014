"""Format reward: a penalty for a turn that did not keep the output format of its role."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rewards.base import PlayedEpisode
from workflows.errors import UsageError
from workflows.trajectory import TRUNCATED


@dataclass(frozen=True, slots=True)
class Format:
    """0 for a turn in its role's format, minus the role's weight for one that is not.

    A turn that the token limit cut off counts as broken, whatever its parser made of it. A role
    without a format (`format_valid` is null) can break none.

    Options:
        weights: the size of the penalty by role; 1 for a role that is not named.

    Raises:
        UsageError: a weight is negative or not finite.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, weight in self.weights.items():
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
                raise UsageError(f"reward format: the weight of role {role!r} is {weight!r}; use 0 or more")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        penalties: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            turn = episode.turns[position]
            broken = turn["format_valid"] is False or turn["status"] == TRUNCATED
            penalties[position] = 0.0 - self.weights.get(turn["role"], 1.0) if broken else 0.0
        return penalties
