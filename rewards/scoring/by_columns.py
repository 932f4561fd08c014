"""One reward asked about all episodes of a part at once, and its answer checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from rewards.base import RewardHooks
from rewards.part import Flags, Numbers, PlayedPart, Rows
from rewards.scoring.by_episode import DETAIL, RewardFailed
from rewards.scoring.weighted import WeightedReward
from workflows.errors import describe
from workflows.hooks import hooks_of


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """Numbers of the turns of a part: `values` where `given`, none elsewhere.

    `undecided` are the episodes that the one-episode form has to look at; what they have here is nothing.
    """

    values: Numbers
    given: Flags
    undecided: Rows


def has_columns(reward: Any) -> bool:
    """Whether a reward has a column form of its own that is to be asked: one that a class inherits while it
    overrides the one-episode form says what the parent says."""
    owners = [
        next((i for i, kind in enumerate(type(reward).__mro__) if name in vars(kind)), None)
        for name in ("by_columns", "__call__")
    ]
    if owners[0] is None or owners[1] is None or owners[0] > owners[1]:
        return False
    return hooks_of(reward, RewardHooks).scores_columns


def column_values(item: WeightedReward, part: PlayedPart) -> ColumnValues:
    """What the column form of a reward gives; nothing for turns that it does not go to.

    Raises:
        RewardFailed: it raised, or what it returned is something else.
    """
    addressed = item.addressed_rows(part.turns)
    reward: Any = item.reward
    try:
        series = reward.by_columns(part if addressed is None else _addressed(part, addressed))
        _refuse_other_than_numbers(series)
    except Exception as error:  # a plug-in may raise anything; cancellation is no Exception and passes
        raise RewardFailed(
            f"reward {item.name!r} failed on all episodes of a part: {describe(error, DETAIL)}"
        ) from error
    if len(series) != part.turns.height:
        raise RewardFailed(
            f"reward {item.name!r} gave the wrong number of values: by_columns gave {len(series)} for the "
            f"{part.turns.height} turns of the part"
        )
    given = series.is_not_null().to_numpy()
    values = np.array(series.cast(pl.Float64).to_numpy())  # a copy: the other form may write there
    undecided = np.unique(part.episode[given & ~np.isfinite(values)])
    if addressed is not None:
        given = given & addressed.to_numpy()
    return ColumnValues(values, given, undecided)


def _refuse_other_than_numbers(series: Any) -> None:
    what = type(series).__name__
    if isinstance(series, pl.Series):
        if series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
            return
        what = f"a series of {series.dtype}"
    raise TypeError(f"by_columns gave {what}, expected a Polars series of numbers")


def _addressed(part: PlayedPart, addressed: pl.Series) -> PlayedPart:
    return replace(part, turns=part.turns.with_columns(receives=pl.col("receives") & addressed))
