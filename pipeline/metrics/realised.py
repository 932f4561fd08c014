"""What an update gained, read off the plays right before and right after it: metrics `shift/<unit>/…`. Pure.

A schedule that plays anew between updates shows the team with and without each of them. Where both plays have
the same tasks and samples, as those of `suffix` have, episodes are paired, and a *regression* is an episode
that earned less than before; else the difference is of two means, of different tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from stages.tables.parquet import TableRef
from workflows.trajectory import TURN_KEYS

SAME = 1e-9  # returns that differ by less are equal, as everywhere


def realised_gains(
    tables: Mapping[str, TableRef], updates: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, float]]:
    """By unit, what its update did to returns; only of updates with plays of their own before and after.

    Args:
        tables: `turns` and `credit` of an iteration.
        updates: by model its rows of `updates` that sum an update up.
    """
    if "turns" not in tables or "credit" not in tables:
        return {}
    moved = [
        (row["block"] or 0, model)
        for model, rows in updates.items()
        for row in rows
        if row["version_after"] > row["version_before"]
    ]
    blocks = _returns(tables) if len({block for block, _ in moved}) > 1 else {}
    played = sorted(blocks)
    gains = {}
    for before, after in pairwise(played):
        between = [model for block, model in moved if before <= block < after]
        if len(between) == 1:
            gains[between[0]] = gain_of(blocks[before], blocks[after])
    return gains


def gain_of(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, float]:
    """How returns changed. Frames have `task_id`, `sample` and `return`, a row for each episode."""
    pairs = before.join(after, on=["task_id", "sample"], suffix="_after")
    if pairs.height and pairs.height == min(before.height, after.height):
        apart = pairs["return_after"] - pairs["return"]
        rose, fell = int((apart > SAME).sum()), int((apart < -SAME).sum())
        return {
            "realised_gain": _mean(apart),
            "realised_error": _error(apart),
            "regressions": fell / pairs.height,
            "improvements": rose / pairs.height,
            "mcnemar_p": mcnemar(rose, fell),
        }
    error = math.hypot(_error(before["return"]), _error(after["return"]))
    gain = _mean(after["return"]) - _mean(before["return"])
    return {"realised_gain": gain, "realised_error": error}


def mcnemar(rose: int, fell: int) -> float:
    """The chance of so uneven a split, either way, if both directions were equally likely: exact."""
    count, least = rose + fell, min(rose, fell)
    tail = sum(math.comb(count, k) for k in range(least + 1))
    return min(1.0, float(2 * tail / 2**count))


def _returns(tables: Mapping[str, TableRef]) -> dict[int, pl.DataFrame]:
    """By block, the return of each of its episodes: the mean of its turns', as in `return/mean`."""
    turns = pl.DataFrame(tables["turns"].read([*TURN_KEYS, "block", "task_id", "sample"]))
    credit = pl.DataFrame(tables["credit"].read([*TURN_KEYS, "return"])).drop_nulls("return")
    episodes = (
        turns.join(credit, on=TURN_KEYS)
        .with_columns(pl.col("block").fill_null(0))
        .group_by("block", "episode_id", "task_id", "sample")
        .agg(pl.col("return").mean())
        .sort("episode_id")
    )
    return {int(block[0]): frame for block, frame in episodes.partition_by("block", as_dict=True).items()}


def _mean(values: pl.Series) -> float:
    return math.fsum(values) / len(values)


def _error(values: pl.Series) -> float:
    """The standard error of a mean; 0 for a single value."""
    deviation = values.std() if len(values) > 1 else 0.0
    assert isinstance(deviation, float)
    return deviation / math.sqrt(len(values))
