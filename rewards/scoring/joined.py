"""Turns with their episodes and tasks: in key order, and which of them can be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.part import Flags, PlayedPart, PlayedTasks, Rows
from rewards.scoring.key_order import key_order
from workflows.errors import SchemaError
from workflows.trajectory import EPISODES, TASKS, TURN_KEYS, TURNS
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Event, Status

_TASK_COLUMNS: Final = ("task_id", "inputs", "gold")
_EPISODE_COLUMNS: Final = ("episode_id", "task_id", "status")
_TURN_COLUMNS: Final = (
    "episode_id",
    "turn_index",
    "step",
    "round",
    "branch",
    "parents",
    "event",
    "act",
    "instance",
    "decided_by",
    "role",
    "model_id",
    "trainable",
    "num_prompt_tokens",
    "num_response_tokens",
    "response_text",
    "parsed",
    "format_valid",
    "status",
    "finish_reason",
    "metrics",
    "tool",
    "tool_request",
    "tool_result",
)
TASKS_SEEN: Final = pa.schema([TASKS.field(c) for c in _TASK_COLUMNS])
EPISODES_SEEN: Final = pa.schema([EPISODES.field(c) for c in _EPISODE_COLUMNS])
TURNS_SEEN: Final = pa.schema([TURNS.field(c) for c in _TURN_COLUMNS])
"""What rewards see of the tables: no token lists, no prompts, no clocks."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The turns of a part sorted by key; `part` has those of the episodes that can be scored."""

    turns: pl.DataFrame  # all, with the columns of `TURNS_SEEN`
    keys: pa.Table  # their keys, in the same order
    episode: Rows  # for each turn, the position of its episode among all
    broken: tuple[str | None, ...]  # for each episode, why it can't be scored
    part: PlayedPart
    scored: Flags  # for each turn, whether it is in `part`
    positions: Rows  # for each episode of `part`, its position among all


def join(tasks: pa.Table, turns: pa.Table, episodes: pa.Table) -> Joined:
    """Bring the tables of a part together by their keys.

    Raises:
        SchemaError: a turn's episode or an episode's task is missing, or two rows have one key.
    """
    # all turns by key; an episode is then a run of rows
    keys, frame = _sorted(turns)
    ids = keys["episode_id"].combine_chunks().dictionary_encode()
    episode = ids.indices.to_numpy().astype(np.intp)  # ascending, as the ids are
    starts = np.flatnonzero(np.diff(episode, prepend=-1))
    lengths = np.diff(starts, append=len(episode))
    _refuse_twins(frame, episode)
    # what the other tables say of each episode, and which episodes can be scored
    statuses, task_of, seen_tasks = _looked_up(ids.dictionary.to_pylist(), tasks, episodes)
    broken = _why_unusable(statuses, frame, episode)
    usable = np.array([reason is None for reason in broken], dtype=np.bool_)
    scored = usable[episode]
    positions = np.flatnonzero(usable)
    # the turns of those, with four columns of their episode; positions count anew, without gaps
    played = (frame if scored.all() else frame.filter(pl.Series(scored))).with_columns(
        episode=pl.Series(np.repeat(np.arange(len(positions)), lengths[usable]), dtype=pl.UInt32),
        episode_status=pl.Series(np.repeat(np.array(statuses, object), lengths)[scored], dtype=pl.String),
        task=pl.Series(np.repeat(task_of[usable], lengths[usable]), dtype=pl.UInt32),
        receives=(
            (pl.col("event") == Event.LLM)
            & pl.col("trainable")
            & pl.col("status").ne_missing(Status.CALLED_OFF)
        ).fill_null(False),
    )
    return Joined(frame, keys, episode, broken, PlayedPart(played, seen_tasks), scored, positions)


def _sorted(turns: pa.Table) -> tuple[pa.Table, pl.DataFrame]:
    seen = turns.select(TURNS_SEEN.names)
    frame = pl.DataFrame(seen)
    order = key_order(frame)
    if order is None:
        return seen.select(TURN_KEYS), frame
    return seen.select(TURN_KEYS).take(pa.array(order)), frame[order]


def _refuse_twins(frame: pl.DataFrame, episode: Rows) -> None:
    index = frame["turn_index"].to_numpy()
    twins = np.flatnonzero((episode[1:] == episode[:-1]) & (index[1:] == index[:-1]))
    if len(twins):
        episode_id, turn_index = frame.row(int(twins[0]))[:2]
        raise SchemaError(f"turns has two rows of turn {turn_index} of episode {episode_id!r}")


def _looked_up(
    episode_ids: Sequence[str], tasks: pa.Table, episodes: pa.Table
) -> tuple[list[str], Rows, PlayedTasks]:
    """Status and position of the task of each of these episodes; the tasks."""
    task_ids, inputs, golds = (tasks[name].to_pylist() for name in _TASK_COLUMNS)
    place_of = _by_key(task_ids, "task_id", "tasks")
    ids, of_task, statuses = (episodes[name].to_pylist() for name in _EPISODE_COLUMNS)
    row_of = _by_key(ids, "episode_id", "episodes")
    status_of: list[str] = []
    places: list[int] = []
    for episode_id in episode_ids:
        if episode_id not in row_of:
            raise SchemaError(f"turns has episode {episode_id!r}, which episodes lacks")
        row = row_of[episode_id]
        if of_task[row] not in place_of:
            raise SchemaError(f"episode {episode_id!r} plays task {of_task[row]!r}, which tasks lacks")
        status_of.append(statuses[row])
        places.append(place_of[of_task[row]])
    return status_of, np.array(places, dtype=np.intp), PlayedTasks(tuple(inputs), tuple(golds))


def _by_key(keys: Sequence[str], key: str, table: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, value in enumerate(keys):
        if value in places:
            raise SchemaError(f"{table} has two rows of {key} {value!r}")
        places[value] = place
    return places


def _why_unusable(statuses: Sequence[str], turns: pl.DataFrame, episode: Rows) -> tuple[str | None, ...]:
    """Why each episode can't be scored (None: it can): by its status, else by its first turn that failed."""
    reasons = [f"episode {status}" if status in NOT_THE_POLICYS_DOING else None for status in statuses]
    bad = turns.select(pl.col("status").is_in(sorted(NOT_THE_POLICYS_DOING)).arg_true()).to_series()
    for row in bad.to_list():
        if reasons[episode[row]] is None:
            reasons[episode[row]] = f"episode with a turn {turns['status'][row]}"
    return tuple(reasons)
