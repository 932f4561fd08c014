"""Group-relative credit: better or worse than the other plays of the same task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from rewards.credit.returns import RETURNS, Returns, add_return
from workflows.errors import UsageError, did_you_mean

By = Literal["task", "task_role", "task_role_step"]

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "task": ("group_id",),
    "task_role": ("group_id", "role"),
    "task_role_step": ("group_id", "role", "step"),
}


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """Advantage = return minus the baseline of the turn's group.

    The baseline is the mean over the group's episodes of each episode's mean return, so that an
    episode weighs the same whatever its number of turns; a mean over turns would let talkative
    episodes set it. Nothing is divided by a standard deviation. A group whose returns are all equal
    gets exact zeros, and so does a group of a single episode, which has nothing to be compared with.
    Sources: GRPO, arXiv:2402.03300; without the deviation, Dr. GRPO, arXiv:2503.20783.

    Options:
        by: which turns share a baseline: all of a task's plays in an iteration, those of one role
            (roles may have rewards of different scale), or those of one role at one step.
        returns: "turn" or "to_go", see `rewards.credit.returns`.
        gamma: the discount per turn of "to_go", in [0, 1].

    Raises:
        UsageError: an option has a value that it can't have.
    """

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.by not in _GROUPS:
            raise UsageError(
                f"credit group_relative: by is {self.by!r}{did_you_mean(self.by, _GROUPS)}; "
                f"use one of {', '.join(_GROUPS)}"
            )
        if self.returns not in RETURNS:
            raise UsageError(
                f"credit group_relative: returns is {self.returns!r}; use one of {', '.join(RETURNS)}"
            )
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"credit group_relative: gamma is {self.gamma}; use a number from 0 to 1")

    @property
    def group_keys(self) -> tuple[str, ...]:
        return _GROUPS[self.by]

    def check(self, group_size: int) -> None:
        """Refuse a group size that can teach nothing.

        Raises:
            UsageError: groups of one episode, whose advantages would all be 0.
        """
        if group_size < 2:
            raise UsageError(
                f"credit group_relative compares the episodes of one task, but rollout.group_size is "
                f"{group_size}, so every advantage would be 0; set group_size to 2 or more"
            )

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key."""
        group, cell = self.group_keys, (*self.group_keys, "episode_id")
        # Measured from the group's lowest return: equal returns are then exact zeros, which c+c+c over 3
        # need not be, and a shift of all rewards falls out before anything is rounded.
        above_lowest = pl.col("return") - pl.col("return").min().over(group)
        baseline = pl.col("_episode_mean").filter(pl.col("_first_of_episode")).mean().over(group)
        alone = pl.col("episode_id").n_unique().over(group) == 1
        return (
            add_return(turns, self.returns, self.gamma)
            .with_columns(_above_lowest=above_lowest)
            .with_columns(
                _episode_mean=pl.col("_above_lowest").mean().over(cell),
                _first_of_episode=pl.int_range(pl.len()).over(cell) == 0,
            )
            .with_columns(advantage=pl.when(alone).then(0.0).otherwise(pl.col("_above_lowest") - baseline))
            .drop("_above_lowest", "_episode_mean", "_first_of_episode")
        )
