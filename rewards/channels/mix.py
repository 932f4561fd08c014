"""The channels of a run put together: their rows, and the weighted sum of each turn, which is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.channels.base import ROWS, Frames, Mix, WeightedChannel
from workflows.credit_tables import CREDIT_CHANNELS
from workflows.errors import SchemaError
from workflows.trajectory import TURN_KEYS


@dataclass(frozen=True, slots=True)
class Mixed:
    """What all channels give.

    - `rows`: a row of `CREDIT_CHANNELS` for each turn and unit, by channel, key and member.
    - `advantage`: of each usable turn, in their order: the sum of weight · value over its rows. A row of a
      span of tokens counts here in full, and outside of its span it is taken off again, token by token
      (`stages.token_advantages.spans`).
    - `gaps`: by channel, over episodes: the sum and the sum of absolute values of what the channel's members
      lack of the team's credit, and the number of episodes.
    """

    rows: pl.DataFrame
    advantage: pl.Series
    gaps: dict[str, tuple[float, float, int]]

    @property
    def table(self) -> pa.Table:
        return self.rows.select(CREDIT_CHANNELS.names).to_arrow().cast(CREDIT_CHANNELS)


def mixed(mix: Mix, frames: Frames) -> Mixed:
    """The channels' rows and their weighted sum over the usable turns.

    Raises:
        SchemaError: a channel gave a turn that it did not get, a number that is not finite, or a span that is
            none.
    """
    keys = frames.usable.select(TURN_KEYS)
    lengths = frames.turns.select(*TURN_KEYS, "num_response_tokens")
    parts = [pl.DataFrame(schema=_SCHEMA)]
    total = np.zeros(keys.height)
    gaps = {}
    for weighted in mix:
        rows = _checked(weighted, frames, lengths)
        marked = rows.join(keys.with_columns(counts=True), on=TURN_KEYS, how="left", maintain_order="left")
        marked = marked.with_columns(pl.col("counts").fill_null(False))
        parts.append(marked.select(list(_SCHEMA)).cast(_SCHEMA))  # type: ignore[arg-type]
        sums = rows.group_by(TURN_KEYS, maintain_order=True).agg(pl.col("value").sum())
        of_turns = keys.join(sums, on=TURN_KEYS, how="left", maintain_order="left")["value"].fill_null(0.0)
        total += weighted.weight * of_turns.to_numpy()
        gaps[weighted.name] = _gap(rows, frames)
    return Mixed(pl.concat(parts), pl.Series("advantage", total, dtype=pl.Float64), gaps)


def channel_sums(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """For each of `keys`: the list of structs (name, value) of its sum in each channel, before weights."""
    sums = rows.group_by(*TURN_KEYS, "channel", maintain_order=True).agg(pl.col("value").sum())
    listed = sums.group_by(TURN_KEYS, maintain_order=True).agg(
        channels=pl.struct(name=pl.col("channel"), value=pl.col("value"))
    )
    return keys.join(listed, on=TURN_KEYS, how="left", maintain_order="left")


_SCHEMA: Mapping[str, Any] = {
    name: {
        pa.string(): pl.String,
        pa.int32(): pl.Int32,
        pa.float64(): pl.Float64,
        pa.bool_(): pl.Boolean,
    }[CREDIT_CHANNELS.field(name).type]
    for name in CREDIT_CHANNELS.names
}


def _checked(weighted: WeightedChannel, frames: Frames, lengths: pl.DataFrame) -> pl.DataFrame:
    """The rows of one channel, whole and in order."""
    rows = weighted.channel(frames)
    who = f"channel {weighted.name!r}"
    needed = ("episode_id", "turn_index", "member", "value")
    if not isinstance(rows, pl.DataFrame) or set(needed) - set(rows.columns):
        missing = sorted(set(needed) - set(getattr(rows, "columns", ())))
        raise SchemaError(
            f"{who} returned {type(rows).__name__} without {', '.join(missing)}; return a frame of rows with "
            f"the columns {', '.join(ROWS)}"
        )
    optional = [pl.lit(None).alias(c) for c in ROWS if c not in rows.columns]
    rows = rows.with_columns(optional).select(*ROWS).cast(ROWS)  # type: ignore[arg-type]
    if bad := int((~np.isfinite(rows["value"].to_numpy())).sum()):
        raise SchemaError(f"{who} gave {bad} values that are null or not finite; leave such rows out")
    known = rows.join(lengths, on=TURN_KEYS, how="left", maintain_order="left")
    strange = rows.join(lengths, on=TURN_KEYS, how="anti")
    if strange.height:
        raise SchemaError(
            f"{who} credits {strange.height} turns that it did not get, the first is "
            f"{strange.select(TURN_KEYS).row(0)}; credit turns of its frames"
        )
    first, end = pl.col("first_token").fill_null(0), pl.coalesce("end_token", "num_response_tokens")
    wrong = known.filter((first < 0) | (first >= end) | (end > pl.col("num_response_tokens")))
    wrong = wrong.filter(pl.col("first_token").is_not_null() | pl.col("end_token").is_not_null())
    if wrong.height:
        row = wrong.row(0, named=True)
        raise SchemaError(
            f"{who} credits the tokens {row['first_token']} to {row['end_token']} of turn "
            f"{row['turn_index']} "
            f"of episode {row['episode_id']!r}, which has {row['num_response_tokens']}; give [first, end) "
            "within the response, or null for all of it"
        )
    unit = str(getattr(weighted.channel, "unit", "turn"))
    return rows.with_columns(
        channel=pl.lit(weighted.name), unit=pl.lit(unit), weight=pl.lit(weighted.weight)
    ).sort(*TURN_KEYS, "member", maintain_order=True)


def _gap(rows: pl.DataFrame, frames: Frames) -> tuple[float, float, int]:
    """What a channel's members lack of the team's credit: its sum and the sum of its size over episodes.

    Each member counts once, by the mean of its rows, however many turns it has.
    """
    members = rows.group_by("episode_id", "member", maintain_order=True).agg(pl.col("value").mean())
    sums = members.group_by("episode_id", maintain_order=True).agg(pl.col("value").sum())
    episodes = frames.episodes.join(sums, on="episode_id", how="left", maintain_order="left")
    gap = (episodes["team_credit"] - episodes["value"].fill_null(0.0)).to_numpy()
    return float(gap.sum()), float(np.abs(gap).sum()), len(gap)
