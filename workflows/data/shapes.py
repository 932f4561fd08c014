"""Rows as data sets write them, brought to names and shapes that the converters know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows.data.fields import at


def usual_shape(row: Any) -> Any:
    """A row with its names in lower case, too; a pair of turns of Open-Reasoner-Zero as one object.

    What is neither an object nor such a pair stays as it is.
    """
    if isinstance(row, list):
        return _of_pair(row) or row
    if not isinstance(row, Mapping):
        return row
    if row.keys() == {"0", "1"}:
        return _of_pair([row["0"], row["1"]]) or row
    if all(not isinstance(name, str) or name.islower() for name in row):
        return row
    lowered = {str(name).lower(): value for name, value in row.items()}
    return lowered | dict(row)


def _of_pair(pair: list[Any]) -> dict[str, Any] | None:
    """`[{from: human, value}, {from: assistant, ground_truth: {value}}]` as a row of mathematics."""
    if len(pair) != 2 or not all(isinstance(turn, Mapping) for turn in pair):
        return None
    problem, gold = at(pair[0], "value"), at(pair[1], "ground_truth.value")
    if not isinstance(problem, str) or gold is None:
        return None
    return {"problem": problem, "answer": gold}
