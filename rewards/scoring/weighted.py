"""The rewards of a run: what each weighs, and which turns it goes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rewards.base import Reward
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One reward of a run, its weight, and which turns it goes to: None for `roles` or `steps` means all."""

    name: str
    weight: float
    reward: Reward
    roles: frozenset[str] | None = None
    steps: frozenset[str] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for items that give the same numbers: one reward object, addressed to the same turns."""
        return (self.name, id(self.reward), self.roles, self.steps)

    def addressed(self, turns: Sequence[Mapping[str, Any]]) -> frozenset[int] | None:
        """Positions of the turns that it goes to; None: all."""
        if self.roles is None and self.steps is None:
            return None
        return frozenset(
            i
            for i, turn in enumerate(turns)
            if (self.roles is None or turn["role"] in self.roles)
            and (self.steps is None or turn["step"] in self.steps)
        )

    def addressed_rows(self, turns: pl.DataFrame) -> pl.Series | None:
        """`addressed` of a frame: True for the turns that it goes to; None: all."""
        named = [
            pl.col(column).is_in(sorted(names)).fill_null(False)
            for column, names in (("role", self.roles), ("step", self.steps))
            if names is not None
        ]
        return turns.select(pl.all_horizontal(named)).to_series() if named else None


@dataclass(frozen=True, slots=True)
class WeightedRewards:
    """The rewards of a run; a turn's reward is the weighted sum of the parts that are not null.

    Whatever mix is wanted is a list of these. Per trajectory: a reward that gives all turns one number,
    such as `token_f1`. Per role or step: `roles` and `steps` say whom a reward goes to; the others'
    part is null, and a "split" share is divided among those named. Per turn: a reward that gives each
    turn its own, such as `f1_by_round`. A reward of weight 0 is a metric: its parts are kept, and it
    makes no reward out of null.

    Raises:
        UsageError: no reward, two of one name, or a weight that is not finite.
    """

    items: tuple[WeightedReward, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise UsageError("no reward is configured; add a [[rewards]] section")
        names = [item.name for item in self.items]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UsageError(f"two rewards are named {twice[0]!r}; their parts would be one column")
        for item in self.items:
            if not math.isfinite(item.weight):
                raise UsageError(f"reward {item.name!r} has weight {item.weight}; use a finite number")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)
