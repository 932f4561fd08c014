"""Rows of a partition and their scores as flat arrays, and token advantages as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stages.token_advantages.ragged import Bools, Floats, Ints, kept_lengths, row_of
from stages.token_advantages.spec import BOOTSTRAPS, Need
from workflows.errors import SchemaError
from workflows.trajectory import PARTITION, TOKEN_ADVANTAGES, TURN_KEYS

_COLUMNS: Final = (*TURN_KEYS, "role", "response_token_ids", "behaviour_logprobs", "reward", "advantage")
ROWS_SEEN: Final = pa.schema([PARTITION.field(c) for c in _COLUMNS])
SCORE_COLUMNS: Final[dict[Need, str]] = {
    "old": "old_logprobs",
    "reference": "reference_logprobs",
    "values": "values",
    "bootstrap_turns": "bootstrap_value",
    "bootstrap_episodes": "bootstrap_value",
}


@dataclass(frozen=True, slots=True)
class Rows:
    """M turns with N response tokens. `frame` has the keys, `role`, `reward` and `advantage`.

    `scores` has the (N,) arrays that were asked for, by need. `mask` is True for the tokens that are
    trained: all of them.
    """

    frame: pl.DataFrame
    lengths: Ints  # (M,)
    mask: Bools  # (N,)
    behaviour: Floats  # (N,)
    bootstrap: Floats  # (M,), 0 where there is none
    scores: dict[Need, Floats] = field(default_factory=dict)

    def take(self, keep: Bools) -> Rows:
        """The rows where `keep` (M,)."""
        tokens = np.repeat(keep, self.lengths)
        return Rows(
            frame=self.frame.filter(pl.Series(keep, dtype=pl.Boolean)),
            lengths=self.lengths[keep],
            mask=self.mask[tokens],
            behaviour=self.behaviour[tokens],
            bootstrap=self.bootstrap[keep],
            scores={need: values[tokens] for need, values in self.scores.items()},
        )


def read_rows(partition: pa.Table, scores: pa.Table | None, needs: Sequence[Need]) -> Rows:
    """Rows in the order of `partition`, joined with their scores by key.

    Raises:
        SchemaError: a row without its score, lists of different lengths, or a score that is not finite.
    """
    lengths = _lengths(partition["response_token_ids"])
    frame = pl.DataFrame(partition.select([*TURN_KEYS, "role", "reward", "advantage"]))
    found: dict[Need, Floats] = {}
    bootstrap = np.zeros(len(lengths))
    if needs:
        assert scores is not None, "the plan has a score stage where scores are needed"
        scores = _aligned(frame, scores)
        for need in (n for n in needs if n not in BOOTSTRAPS):
            found[need] = _flat(scores[SCORE_COLUMNS[need]], lengths, frame, SCORE_COLUMNS[need])
        if set(needs) & set(BOOTSTRAPS):
            bootstrap = np.asarray(pc.fill_null(scores["bootstrap_value"], 0.0), dtype=np.float64)
    behaviour = _flat(partition["behaviour_logprobs"], lengths, frame, "behaviour_logprobs")
    return Rows(frame, lengths, np.ones(int(lengths.sum()), dtype=np.bool_), behaviour, bootstrap, found)


def token_table(
    frame: pl.DataFrame,
    used: Rows,
    columns: dict[str, Floats],
    excluded: Sequence[str | None],
) -> pa.Table:
    """`TOKEN_ADVANTAGES` for the rows of `frame`: lists for those that are used, a reason for the others."""
    lengths = np.zeros(frame.height, dtype=np.int64)
    lengths[np.array([reason is None for reason in excluded], dtype=bool)] = used.lengths
    missing = pa.array([reason is not None for reason in excluded], pa.bool_())
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    data: dict[str, Any] = {key: frame[key].to_arrow() for key in TURN_KEYS}
    for name in ("advantages", "returns", "importance_weights"):
        if name in columns:
            numbers = pa.array(columns[name].astype(np.float32))
            data[name] = pa.ListArray.from_arrays(offsets, numbers, mask=missing)
        else:
            data[name] = pa.nulls(frame.height, pa.list_(pa.float32()))
    data["excluded"] = pa.array(list(excluded), pa.string())
    return pa.table(data).select(TOKEN_ADVANTAGES.names).cast(TOKEN_ADVANTAGES)


def _aligned(frame: pl.DataFrame, scores: pa.Table) -> pa.Table:
    """`scores` in the order of `frame`."""
    places = pl.DataFrame(scores.select(TURN_KEYS)).with_row_index("place")
    joined = frame.select(TURN_KEYS).join(places, on=TURN_KEYS, how="left", maintain_order="left")
    if joined.height != frame.height or joined["place"].null_count() or places.height != frame.height:
        raise SchemaError(
            f"scores ({places.height} rows) and partition ({frame.height}) do not have the same turns in "
            f"this part, {joined['place'].null_count()} have no score; these tables are not of one iteration"
        )
    return scores.take(joined["place"].to_arrow())


def _lengths(column: pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0), dtype=np.int64)


def _flat(column: pa.ChunkedArray, lengths: Ints, frame: pl.DataFrame, name: str) -> Floats:
    have = _lengths(column)
    if (wrong := have != lengths).any():
        row = int(np.flatnonzero(wrong)[0])
        raise SchemaError(
            f"row {frame.select(TURN_KEYS).row(row)} has {lengths[row]} response tokens but {have[row]} "
            f"{name}; these tables are not of one iteration"
        )
    values = np.asarray(column.combine_chunks().flatten(), dtype=np.float64)
    if not np.isfinite(values).all():
        row = int(row_of(lengths)[np.flatnonzero(~np.isfinite(values))[0]])
        raise SchemaError(f"row {frame.select(TURN_KEYS).row(row)} has {name} that are not finite")
    return values


def per_token(values: Floats, lengths: Ints) -> Floats:
    """One number for each row, on each of its tokens."""
    return np.repeat(values, lengths)


def on_last_token(values: Floats, mask: Bools, lengths: Ints) -> Floats:
    """One number for each row, on its last trained token and 0 elsewhere, (N,)."""
    out = np.zeros(int(mask.sum()))
    out[np.cumsum(kept_lengths(mask, lengths)) - 1] = values
    full = np.zeros(len(mask))
    full[mask] = out
    return full
