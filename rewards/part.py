"""The played episodes of one part as columns: what a reward sees that scores them all at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from workflows.errors import SchemaError

Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlayedTasks:
    """The tasks of a part, by position, decoded once and when first asked for. Do not write to them."""

    inputs_json: tuple[str, ...]
    gold_json: tuple[str, ...]

    @cached_property
    def inputs(self) -> list[Mapping[str, Any]]:
        return [json.loads(text) for text in self.inputs_json]

    @cached_property
    def gold(self) -> list[Mapping[str, Any]]:
        return [json.loads(text) for text in self.gold_json]


@dataclass(frozen=True)
class PlayedPart:
    """Whole episodes of a part, without those that can't be scored.

    `turns` has the columns that one-episode rewards see (`joined.TURNS_SEEN`), as they are stored:
    `parsed`, `tool_request` and `tool_result` are JSON text (see `decoded`), `metrics` a list of structs.
    Rows are sorted by (episode_id, turn_index), so an episode is a run of rows. Four columns more:

    - `episode`: its position among the part's episodes, from 0 without gaps;
    - `episode_status`: its status, which may be other than its turns';
    - `task`: the position of its task in `tasks`;
    - `receives`: whether the reward may go to this turn: an llm turn of a model that is trained, and
      addressed where the settings name roles or steps (`PlayedEpisode.trainable`).
    """

    turns: pl.DataFrame
    tasks: PlayedTasks
    _decoded: dict[str, list[Any]] = field(default_factory=dict)  # of all who look at these turns

    @cached_property
    def episode(self) -> Rows:
        """For each turn, the position of its episode."""
        return self.turns["episode"].to_numpy().astype(np.intp)

    @cached_property
    def receives(self) -> Flags:
        return self.turns["receives"].to_numpy()

    @cached_property
    def task(self) -> Rows:
        """For each episode, the position of its task."""
        return self.turns["task"].to_numpy().astype(np.intp)[self.starts]

    @cached_property
    def starts(self) -> Rows:
        """For each episode, the row of its first turn."""
        return np.flatnonzero(np.diff(self.episode, prepend=-1))

    @property
    def num_episodes(self) -> int:
        return len(self.starts)

    def rows(self, condition: pl.Expr) -> Rows:
        """The rows where a condition on the columns of `turns` holds, ascending; null does not."""
        return self.turns.select(condition.fill_null(False).arg_true()).to_series().to_numpy().astype(np.intp)

    def series(self, values: Numbers, given: Flags) -> pl.Series:
        """`values` as `by_columns` returns them: one for each turn, null where not `given`."""
        return pl.Series(pa.array(values, mask=~given))

    def decoded(self, column: str) -> list[Any]:
        """The values of a JSON column, one for each turn; None where there is no text. Do not write to them.

        Raises:
            SchemaError: a text is not JSON.
        """
        if column not in self._decoded:
            self._decoded[column] = _decode(column, self.turns[column].to_list())
        return self._decoded[column]


def _decode(column: str, texts: list[str | None]) -> list[Any]:
    try:  # as one document: several times faster than one each
        values: list[Any] = json.loads(f"[{','.join(['null' if text is None else text for text in texts])}]")
    except ValueError as error:
        raise SchemaError(f"column {column!r} has text that is not JSON: {error}") from error
    if len(values) != len(texts):
        raise SchemaError(f"column {column!r} has text that is not one JSON value for each turn")
    return values
