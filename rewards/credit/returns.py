"""From rewards to returns: what a turn is answerable for."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal, get_args

import numpy as np
import polars as pl

from rewards.scoring.key_order import by_key

Returns = Literal["turn", "to_go"]
RETURNS: Final[tuple[Returns, ...]] = get_args(Returns)


def add_return(turns: pl.DataFrame, kind: Returns, gamma: float = 1.0) -> pl.DataFrame:
    """Add `return` to frames with the turn keys and `reward` (no nulls); the result is sorted by key.

    - "turn": the turn's own reward; what came later is not its doing. A shared outcome is already
      in it.
    - "to_go": its own and all later rewards of its episode, each later turn discounted by `gamma`
      once more. Turns that have no row (tools, frozen roles) do not discount.
    """
    turns = by_key(turns)
    if kind == "turn":
        return turns.with_columns(pl.col("reward").alias("return"))
    to_go = turns.select(pl.int_range(pl.len()).reverse().over("episode_id")).to_series().to_numpy()
    returns = turns["reward"].to_numpy().copy()
    # Backwards through all episodes at once: a turn's successor is the next row. No powers of gamma, which
    # would underflow in long episodes.
    by_distance = np.argsort(to_go, kind="stable")
    edges = np.searchsorted(to_go[by_distance], np.arange(1, to_go.max(initial=0) + 2))
    for start, end in pairwise(edges):
        rows = by_distance[start:end]
        returns[rows] += gamma * returns[rows + 1]
    return turns.with_columns(pl.Series("return", returns, dtype=pl.Float64))
