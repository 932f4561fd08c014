"""Turns in the order of their keys: most tables lie in it already, which is cheap to see."""

from __future__ import annotations

import numpy as np
import polars as pl

from rewards.part import Rows
from workflows.trajectory import TURN_KEYS


def key_order(turns: pl.DataFrame) -> Rows | None:
    """The rows by (episode_id, turn_index); None where they are in that order."""
    order = turns.select(pl.arg_sort_by(TURN_KEYS)).to_series().to_numpy().astype(np.intp)
    return None if (np.diff(order) == 1).all() else order


def by_key(turns: pl.DataFrame) -> pl.DataFrame:
    order = key_order(turns)
    return turns if order is None else turns[order]


def same_keys(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether two frames have the same turns in the same order."""
    return one.height == other.height and all(one[key].equals(other[key]) for key in TURN_KEYS)
