"""Group-relative credit: better or worse than the other plays of the same task."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rewards.credit.grouping import (
    BY_OPTIONS,
    By,
    check_group_size,
    check_options,
    compare,
    unless_alone,
    without_helpers,
)
from rewards.credit.returns import Returns


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """Advantage = return minus the baseline of the turn's group, the mean of its episodes.

    Nothing is divided by a standard deviation. A group whose returns are all equal gets exact zeros,
    and so does a group of a single episode. Also by the name "dr_grpo".
    Sources: GRPO, arXiv:2402.03300; without the deviation, Dr. GRPO, arXiv:2503.20783; one baseline for
    each role and turn, arXiv:2510.11062.

    Options:
        by: which turns share a baseline: all of a task's plays in an iteration, those of one role
            (roles may have rewards of different scale), those of one role at one step, or those of one
            role with exactly the same prompt.
        returns: "turn" or "to_go", see `rewards.credit.returns`.
        gamma: the discount per turn of "to_go", in [0, 1].

    Raises:
        UsageError: an option has a value that it can't have.
    """

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_options("group_relative", self.by, self.returns, self.gamma)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def check(self, group_size: int) -> None:
        check_group_size("group_relative", group_size)

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        advantage = unless_alone(pl.col("_above") - pl.col("_baseline"))
        return without_helpers(
            compare(turns, self.by, self.returns, self.gamma).with_columns(advantage=advantage)
        )
