"""Groups that can't teach: found by what was rewarded, and left out where the settings say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from rewards.credit.equal import are_equal
from workflows.trajectory import TURN_KEYS

SILENT: Final = "group without signal"


@dataclass(frozen=True, slots=True)
class LeaveOutSilent:
    """Leave out every group whose numbers are all equal, but for rounding (`rewards.credit.equal`).

    `by` is the reward part (a [[rewards]] name) that decides; None takes the return. Where a reward
    also pays for length or form, that noise keeps groups apart which all got the task right, or all
    wrong; deciding by the task's own part does not. Source: dynamic sampling, DAPO, arXiv:2503.14476.
    """

    by: str | None = None

    def silent(self, turns: pl.DataFrame, rewards: pa.Table, keys: Sequence[str]) -> pl.DataFrame:
        """Keys of the turns of silent groups; `turns` has the turn keys, `keys` and `return`."""
        column = pl.col("return")
        if self.by is not None:
            turns = turns.join(_part(rewards, self.by), on=TURN_KEYS, how="left", maintain_order="left")
            column = pl.col("_part")
        equal = are_equal(column.min().over(keys), column.max().over(keys))
        return turns.filter(equal.fill_null(True)).select(TURN_KEYS)


def _part(rewards: pa.Table, name: str) -> pl.DataFrame:
    part = pl.col("reward_parts").struct
    return (
        pl.DataFrame(rewards.select([*TURN_KEYS, "reward_parts"]))
        .explode("reward_parts")
        .filter(part.field("name") == name)
        .select(*TURN_KEYS, _part=part.field("value"))
    )
