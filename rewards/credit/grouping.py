"""What group-relative methods share: which turns are compared, and how they stand in their group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import polars as pl

from rewards.base import CreditHooks
from rewards.credit.equal import are_equal
from rewards.credit.returns import RETURNS, Returns, add_return
from workflows.errors import UsageError, did_you_mean

By = Literal["task", "task_round", "task_role", "task_role_step", "task_role_round", "context"]
BY_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "task": ("group_id",),
    "task_round": ("group_id", "round"),
    "task_role": ("group_id", "role"),
    "task_role_step": ("group_id", "role", "step"),
    "task_role_round": ("group_id", "role", "round"),
    "context": ("group_id", "role", "context_hash"),
}
"""All of a task's plays in an iteration, those of one round of their loops, those of one role, those of one
role at one step of the graph or in one round, or those of one role that saw exactly the same prompt."""


@dataclass(frozen=True, slots=True)
class Grouped(CreditHooks):
    """Options of the methods that compare the plays of one task.

    Options:
        by: which turns share a baseline, see `BY_OPTIONS`.
        returns: "turn" or "to_go", see `rewards.credit.returns`.
        gamma: the discount per turn of "to_go", in [0, 1].

    Raises:
        UsageError: an option has a value that it can't have.
    """

    method: ClassVar[str]  # the name in messages

    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_options(self.method, self.by, self.returns, self.gamma)

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def check_group_size(self, group_size: int) -> None:
        refuse_single_plays(self.method, group_size)


def check_options(method: str, by: str, returns: str, gamma: float) -> None:
    """Refuse options that no group-relative method has.

    Raises:
        UsageError: naming the option, its value and what it can be.
    """
    if by not in BY_OPTIONS:
        raise UsageError(
            f"credit {method}: by is {by!r}{did_you_mean(by, BY_OPTIONS)}; use one of {', '.join(BY_OPTIONS)}"
        )
    check_returns(method, returns, gamma)


def check_returns(method: str, returns: str, gamma: float) -> None:
    if returns not in RETURNS:
        raise UsageError(
            f"credit {method}: returns is {returns!r}{did_you_mean(returns, RETURNS)}; use one of "
            f"{', '.join(RETURNS)}"
        )
    if not 0 <= gamma <= 1:
        raise UsageError(f"credit {method}: gamma is {gamma}; use a number from 0 to 1")


def refuse_single_plays(method: str, group_size: int) -> None:
    """Refuse groups of one episode, whose advantages would all be 0.

    Raises:
        UsageError: saying so.
    """
    if group_size < 2:
        raise UsageError(
            f"credit {method} compares the episodes of one task, but rollout.group_size is {group_size}, so "
            'every advantage would be 0; set group_size to 2 or more, or use credit "running_baseline" or '
            '"reinforce_pp"'
        )


def compare(turns: pl.DataFrame, by: str, returns: Returns, gamma: float) -> pl.DataFrame:
    """Add `return`, and how each turn stands in its group; one row per turn, sorted by key.

    - `_above`: return minus the lowest return of the group. Working from there, equal returns give exact
      zeros, which c+c+c over 3 need not, and a shift of all rewards falls out before anything is rounded.
      Returns that are equal but for rounding (`rewards.credit.equal`) are equal here.
    - `_episode_mean`: mean of `_above` over the turns of the same episode in the group.
    - `_baseline`: mean of `_episode_mean` over the group's episodes, so that an episode weighs the same
      whatever its number of turns; a mean over turns would let talkative episodes set it.
    - `_episodes`: number of episodes in the group. `_first`: True on one turn of each of them.
    """
    group = BY_OPTIONS[by]
    cell = (*group, "episode_id")
    return (
        add_return(turns, returns, gamma)
        .with_columns(_low=pl.col("return").min().over(group), _high=pl.col("return").max().over(group))
        .with_columns(
            _above=pl.when(are_equal(pl.col("_low"), pl.col("_high")))
            .then(pl.col("return") * 0.0)  # null stays null
            .otherwise(pl.col("return") - pl.col("_low"))
        )
        .with_columns(
            _episode_mean=pl.col("_above").mean().over(cell),
            _first=pl.struct(cell).is_first_distinct(),
            _episodes=pl.col("episode_id").n_unique().over(group),
        )
        .with_columns(_baseline=pl.col("_episode_mean").filter(pl.col("_first")).mean().over(group))
    )


def unless_alone(advantage: pl.Expr) -> pl.Expr:
    """`advantage`, or 0 in a group of one episode, which has nothing to be compared with."""
    return pl.when(pl.col("_episodes") == 1).then(0.0).otherwise(advantage)


def without_helpers(turns: pl.DataFrame) -> pl.DataFrame:
    return turns.select([c for c in turns.columns if not c.startswith("_")])
