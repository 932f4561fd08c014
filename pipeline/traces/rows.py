"""Rows of tables as JSON values of a trace, and back: with their content, hashes in its place, or nothing.

Content is what a task, a prompt, a reply or a tool says, in words or in ids. Everything else of a row (who,
when, how long, with which weights, what it earned) is in every trace.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import pyarrow as pa

from rewards.scoring.reasons import kind_of
from workflows.trajectory import CREDIT, EPISODES, EVALUATION, REWARDS, TASKS, TURNS, clean_text

Row = Mapping[str, Any]
Content = Literal["none", "hash", "inline"]
CONTENTS: Final = ("none", "hash", "inline")
IDENTITY: Final = ("iteration", "block", "split", "task_id", "group_id", "sample", "episode_id")

# Columns that hold what somebody says.
_SAID: Final = frozenset(
    ("prompt_token_ids", "response_token_ids", "behaviour_logprobs", "messages", "response_text", "parsed")
) | {"status_detail", "tool_request", "tool_result", "act_detail", "cut", "error", "inputs", "gold"}
_HASHES: Final = frozenset(("context_hash", "row_hash"))  # of content: not with `none`
_REASONS: Final = frozenset(("no_reward_reason", "excluded", "failed"))  # their details may quote a text
_OF_EPISODE: Final = frozenset(IDENTITY)
_KEYS: Final = frozenset(("episode_id", "turn_index"))


def values_of(row: Row, schema: pa.Schema, content: Content) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a row that are not null: those for every trace, and its content, with `inline`.

    The keys of an episode are left out of rows that are not its own.
    """
    known, said = {}, {}
    left_out = _KEYS if schema is REWARDS or schema is CREDIT else frozenset(("turn_index",))
    left_out = _OF_EPISODE if schema is TURNS else frozenset(("task_id",)) if schema is TASKS else left_out
    for name in schema.names:
        value = row.get(name)
        if value is None or name in left_out or (content == "none" and name in _HASHES):
            continue
        if name in _SAID:
            if content == "inline":
                said[name] = plain(value)
        elif name in _REASONS and content != "inline":
            known[name] = kind_of(value)
        else:
            known[name] = plain(value)
    return known, said


def plain(value: Any) -> Any:
    """A value of a column as JSON has it. Numbers that JSON lacks (NaN, Infinity) become their names."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, list):
        if value and isinstance(value[0], Mapping):  # named values, in their order
            return [[item["name"], plain(item["value"])] for item in value]
        if any(isinstance(item, float) and not math.isfinite(item) for item in value):
            return [plain(item) for item in value]
        return value
    return value


def row_of(values: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row out of the values of a trace: what `values_of` made, and whatever another program wrote there.

    Raises:
        ValueError: a value does not fit its column.
    """
    row = {}
    for name, value in values.items():
        if name not in schema.names or value is None:
            continue
        try:
            row[name] = _cell(value, schema.field(name).type)
        except (TypeError, ValueError, KeyError, OverflowError):
            raise ValueError(f"{name} can't be {value!r:.60}; expected {schema.field(name).type}") from None
    return row


def _cell(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        if pa.types.is_struct(kind.value_type):
            return [{"name": str(name), "value": _cell(v, pa.float64())} for name, v in value]
        if not isinstance(value, list):
            raise TypeError
        return [_cell(item, kind.value_type) for item in value]
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        if not isinstance(value, bool):
            raise TypeError
        return value
    if pa.types.is_integer(kind):
        if isinstance(value, bool) or int(value) != value:
            raise TypeError
        bits = kind.bit_width - 1
        if not -(2**bits) <= value < 2**bits:
            raise ValueError
        return int(value)
    if pa.types.is_floating(kind):
        return float(value)  # of a name of NaN or Infinity too
    if not isinstance(value, str):
        raise TypeError
    return clean_text(value)


def reference(text: str | None) -> str | None:
    """What stands for a text where it is withheld: its hash."""
    if text is None:
        return None
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


SCHEMAS: Final = {
    "task": TASKS,
    "episode": EPISODES,
    "turn": TURNS,
    "reward": REWARDS,
    "credit": CREDIT,
    "evaluation": EVALUATION,
}
