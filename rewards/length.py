"""Length term: what a turn's response tokens cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from rewards.base import PlayedEpisode
from rewards.part import PlayedPart
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class Length:
    """Minus `cost` for every response token beyond `budget`; 0 for a reply within it.

    With budget 0 every token costs. The end token counts, as it is sampled. Another cost or budget for
    some roles is another `[[rewards]]` section with `roles = […]`.

    Options:
        cost: of one token, 0 or more.
        budget: tokens of one reply that are free.
        most: the largest penalty of one turn; None: no bound.

    Raises:
        UsageError: an option is negative or not finite.
        ValueError: a turn without a token count; the episode is then excluded.
    """

    cost: float = 0.001
    budget: int = 0
    most: float | None = None

    def __post_init__(self) -> None:
        for name in ("cost", "budget", "most"):
            value = getattr(self, name)
            if value is None and name == "most":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"option {name} must be a number, got {value!r}")
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"option {name} is {value}; use a finite number of 0 or more")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            tokens = episode.turns[position]["num_response_tokens"]
            if tokens is None:
                raise ValueError(f"turn {position} has no count of response tokens")
            values[position] = self._value(tokens)
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        counts = part.turns["num_response_tokens"]
        known = {n: math.nan if n is None else self._value(n) for n in counts.unique().to_list()}
        return part.series(np.array([known[n] for n in counts.to_list()], np.float64), part.receives)

    def _value(self, tokens: int) -> float:
        penalty = self.cost * max(0, tokens - self.budget)
        return 0.0 - (penalty if self.most is None else min(penalty, self.most))
