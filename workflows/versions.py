"""Tables of older schema versions, read as those of today. Nothing stored is ever rewritten.

A manifest says which version its tables have. What a version changed stands below, column by column, so
that reading some columns of an old table reads no more of the file than they are made of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from workflows.errors import UsageError
from workflows.trajectory import SCHEMA_VERSION, to_json

OLDEST: Final = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a version added, renamed or wrote in another way.

    `make` gets the columns `of` of the version before, as arrays; without it the column is null. A new
    name for column "a" is `Column(("a",), lambda a: a)`.
    """

    of: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None


def _cut_in_items(cut: pa.ChunkedArray) -> pa.Array:
    """`{"passages": 3}` → `{"passages": {"items": 3}}`: in version 1 nothing was cut by words."""
    values = [None if text is None else json.loads(text) for text in cut.to_pylist()]
    return pa.array(
        [v if v is None else to_json({name: {"items": count} for name, count in v.items()}) for v in values],
        pa.string(),
    )


def _zeros(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([0] * len(column), pa.int32())


_NULL: Final = Column()
_BLOCK_0: Final = Column(("iteration",), _zeros)  # before version 3 an iteration was one block

# By the version that is left, then by table: every column of the next version that is not as it was.
STEPS: Final[Mapping[int, Mapping[str, Mapping[str, Column]]]] = {
    1: {
        "turns": {
            "num_response_tokens": Column(("response_token_ids",), pc.list_value_length),
            "cut": Column(("cut",), _cut_in_items),
        },
        "partition": dict.fromkeys(("round", "branch", "reward"), _NULL),
        "updates": dict.fromkeys(
            (
                *("value_loss", "kl_reference", "dual_clip_fraction", "explained_variance"),
                *("importance_weight_mean", "importance_weight_max", "importance_masked"),
            ),
            _NULL,
        ),
    },
    2: {
        "turns": {
            "block": _BLOCK_0,
            **dict.fromkeys(
                (
                    *("conversation", "conversation_turn", "lineage", "lineage_parent"),
                    *("instance", "decided_by", "recipients", "act_detail", "option_logprobs", "modelled_at"),
                ),
                _NULL,
            ),
        },
        "episodes": {
            "block": _BLOCK_0,
            **dict.fromkeys(
                ("modelled_seconds", "base_episode_id", "replay_from_turn", "num_copied_tokens"), _NULL
            ),
        },
        "partition": dict.fromkeys(("conversation", "conversation_turn", "act", "option_logprobs"), _NULL),
        "updates": {
            "block": _BLOCK_0,
            **dict.fromkeys(
                (
                    *("update_id", "place", "radius", "divergence"),
                    *("decision", "kept_share", "candidate_version"),
                ),
                _NULL,
            ),
        },
        "models": {"block": _BLOCK_0},
    },
}


def check_version(version: object, where: str) -> None:
    """Refuse tables that can't be read here.

    Raises:
        UsageError: they are of a newer version, or of one that this Cadre never had.
    """
    if isinstance(version, int) and OLDEST <= version <= SCHEMA_VERSION:
        return
    newer = isinstance(version, int) and version > SCHEMA_VERSION
    remedy = (
        "a newer Cadre wrote it: upgrade this one"
        if newer
        else "read it with the Cadre that wrote it, or make it anew with --new"
    )
    raise UsageError(
        f"{where}: table schema version {version}, this Cadre reads versions {OLDEST} to {SCHEMA_VERSION}; "
        f"{remedy}"
    )


def stored_columns(table: str, version: int, columns: Sequence[str]) -> list[str]:
    """Which columns of a table of `version` today's `columns` are made of."""
    wanted = list(columns)
    for step in range(SCHEMA_VERSION - 1, version - 1, -1):
        changed = _changed(table, step)
        wanted = list(dict.fromkeys(old for c in wanted for old in (changed[c].of if c in changed else (c,))))
    return wanted


def upgraded(stored: pa.Table, table: str, version: int, columns: Sequence[str]) -> pa.Table:
    """Today's `columns` out of a table of `version` that has its `stored_columns`."""
    wanted = {SCHEMA_VERSION: list(columns)}
    for step in range(SCHEMA_VERSION - 1, version, -1):
        wanted[step] = stored_columns(table, step, columns)
    rows = stored.num_rows
    for step in range(version, SCHEMA_VERSION):
        changed = _changed(table, step)
        made = {}
        for name in wanted[step + 1]:
            column = changed.get(name)
            if column is None:
                made[name] = stored[name]
            elif column.make is None:
                made[name] = pa.nulls(rows)
            else:
                made[name] = column.make(*(stored[old] for old in column.of))
        stored = pa.table(made)
    return stored


def _changed(table: str, step: int) -> Mapping[str, Column]:
    return STEPS[step].get(table.partition("/")[0], {})
