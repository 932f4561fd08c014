"""Credit that counts on some tokens of a turn only, such as those of a message.

A turn's advantage is the sum of all its channels' weighted values. A value with a span of tokens [first, end)
belongs to these tokens alone, so it is taken off all other tokens of the response:

    advantage of token t  =  advantage of the turn - Σ weight · value over spans that t is not in
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from stages.token_advantages.ragged import Floats, first_tokens
from stages.token_advantages.rows import Rows
from workflows.credit_tables import CREDIT_CHANNELS
from workflows.errors import SchemaError
from workflows.trajectory import TURN_KEYS

_COLUMNS: Final = (*TURN_KEYS, "value", "weight", "first_token", "end_token", "counts")
SPANS_SEEN: Final = pa.schema([CREDIT_CHANNELS.field(c) for c in _COLUMNS])


def spans_of(channels: pa.Table) -> pl.DataFrame:
    """The rows of `credit_channels` that name a span: keys, `amount` (weight times value), `first`, `end`."""
    named = pl.col("first_token").is_not_null() | pl.col("end_token").is_not_null()
    return (
        pl.DataFrame(channels.select(SPANS_SEEN.names))
        .filter(named & pl.col("counts"))
        .select(
            *TURN_KEYS,
            amount=pl.col("weight") * pl.col("value"),
            first=pl.col("first_token").fill_null(0),
            end="end_token",
        )
        .sort(*TURN_KEYS, "first", maintain_order=True)
    )


def of_rows(spans: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """The spans of some turns."""
    return spans.join(keys.select(TURN_KEYS), on=TURN_KEYS, how="semi", maintain_order="left")


def beside_spans(rows: Rows, spans: pl.DataFrame) -> Floats:
    """What is to be taken off each token: the amounts of the spans that it is not in, (N,).

    Raises:
        SchemaError: a span is not within its response.
    """
    off = np.zeros(len(rows.mask))
    starts = first_tokens(rows.lengths)
    places = {key: place for place, key in enumerate(rows.frame.select(TURN_KEYS).iter_rows())}
    for episode_id, index, amount, first, end in spans.iter_rows():
        if (episode_id, index) not in places:
            continue  # a row that is left out of the update
        place = places[episode_id, index]
        start, length = starts[place], rows.lengths[place]
        last = length if end is None else end
        if not 0 <= first < last <= length:
            raise SchemaError(
                f"the tokens {first} to {end} of turn {index} of episode {episode_id!r} are credited, which "
                f"has {length} response tokens; these tables are not of one iteration"
            )
        off[start : start + first] += amount
        off[start + last : start + length] += amount
    return off
