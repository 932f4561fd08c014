"""Format reward: a penalty for a turn that did not keep the output format of its role."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from rewards.answers import kept_format, kept_formats
from rewards.base import PlayedEpisode
from rewards.part import PlayedPart
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class Format:
    """`valid` for a turn in its role's format and `invalid` for one that is not, times the role's weight.

    A turn that the token limit cut off counts as broken, whatever its parser made of it. A role
    without a format (`format_valid` is null) can break none.

    Options:
        weights: what the format of a role weighs; 1 for a role that is not named.
        valid, invalid: 0 and -1, a penalty; 1 and 0 make a bonus of it.

    Raises:
        UsageError: a weight is negative, a number is not finite, or `valid` is below `invalid`.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    valid: float = 0.0
    invalid: float = -1.0

    def __post_init__(self) -> None:
        for role, weight in self.weights.items():
            if not (_is_number(weight) and weight >= 0):
                raise UsageError(f"the weight of role {role!r} is {weight!r}; use 0 or more")
        if not (_is_number(self.valid) and _is_number(self.invalid) and self.valid >= self.invalid):
            raise UsageError(
                f"options valid and invalid are {self.valid!r} and {self.invalid!r}; "
                "use finite numbers, valid not below invalid"
            )

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            turn = episode.turns[position]
            values[position] = self._value(turn["role"], kept_format(turn))
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        cases = list(zip(part.turns["role"].to_list(), kept_formats(part).tolist(), strict=True))
        known = {case: self._value(*case) for case in set(cases)}
        return part.series(np.array([known[case] for case in cases], np.float64), part.receives)

    def _value(self, role: str | None, kept: bool) -> float:
        weight = 1.0 if role is None else self.weights.get(role, 1.0)
        return 0.0 + weight * (self.valid if kept else self.invalid)  # 0, never -0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
