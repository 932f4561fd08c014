"""Single episodes out of stored tables, without reading a whole table into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stages.tables.parquet import TableRef
from workflows.trajectory import TURNS

Row = Mapping[str, Any]

# Prompt ids and logprobs are long and no one reads them.
_SHOWN_TURN_COLUMNS: Final = [c for c in TURNS.names if c not in ("prompt_token_ids", "behaviour_logprobs")]


@dataclass(frozen=True, slots=True)
class Played:
    """One episode with its task and its rows of the tables that are there."""

    episode: Row
    task: Row | None
    turns: Sequence[Row]
    rewards: Sequence[Row] = field(default=())
    credit: Sequence[Row] = field(default=())
    evaluation: Row | None = None  # its metrics, where it was played for an evaluation


def find_episode(tables: Mapping[str, TableRef], episode_id: str, *, full: bool = False) -> Played | None:
    """The episode of this id, or None. `full` also reads the token ids and logprobs."""
    for index in range(len(tables["episodes"].parts)):
        ids = tables["episodes"].read_part(index, ["episode_id"])["episode_id"]
        if pc.any(pc.equal(ids, episode_id)).as_py():
            return _load(tables, index, [episode_id], full)[0]
    return None


def sample_episodes(tables: Mapping[str, TableRef], count: int, *, full: bool = False) -> list[Played]:
    """Up to `count` episodes that span the range of `values_of`: the lowest, the highest, evenly between.

    They come from the first part that has episodes, so that a sample of a large run costs one part.
    Episodes without a value (they failed) count as the lowest. The same tables give the same sample.
    """
    episodes = tables["episodes"]
    index = next((i for i, part in enumerate(episodes.parts) if part.rows), None)
    if index is None or count < 1:
        return []
    ids = episodes.read_part(index, ["episode_id"])["episode_id"].to_pylist()
    return _load(tables, index, spread(ids, values_of(tables, index), count), full)


def spread(ids: Sequence[str], values: Mapping[str, float], count: int) -> list[str]:
    """Up to `count` of the episodes, evenly from the lowest value to the highest; no value is the lowest."""
    ids = sorted(ids, key=lambda e: (values.get(e, float("-inf")), e))
    count = min(count, len(ids))
    return [ids[round(i * (len(ids) - 1) / max(1, count - 1))] for i in range(count)]


def scores_of(evaluation: Row | None) -> dict[str, float | None]:
    """The metrics of an episode's row of an evaluation, by name."""
    return {v["name"]: v["value"] for v in (evaluation["values"] or () if evaluation else ())}


def values_of(tables: Mapping[str, TableRef], index: int, metric: str | None = None) -> dict[str, float]:
    """By episode of a part: a metric of an evaluation, by default its first, else the mean return of its
    turns; without those that have none."""
    if "evaluation" in tables:
        if index >= len(tables["evaluation"].parts):
            return {}
        found = {}
        for row in tables["evaluation"].read_part(index, ["episode_id", "values"]).to_pylist():
            scores = scores_of(row)
            value = next(iter(scores.values()), None) if metric is None else scores.get(metric)
            if value is not None:
                found[row["episode_id"]] = value
        return found
    if "credit" not in tables or index >= len(tables["credit"].parts):
        return {}
    credit = tables["credit"].read_part(index, ["episode_id", "return"]).drop_null()
    means = credit.group_by("episode_id").aggregate([("return", "mean")])
    return dict(zip(means["episode_id"].to_pylist(), means["return_mean"].to_pylist(), strict=True))


def _load(tables: Mapping[str, TableRef], index: int, ids: Sequence[str], full: bool) -> list[Played]:
    """These episodes of part `index`, in the order of `ids`."""
    episodes = {r["episode_id"]: r for r in _rows(tables, "episodes", index, "episode_id", ids)}
    tasks_of = [episodes[e]["task_id"] for e in ids]
    tasks = {r["task_id"]: r for r in _rows(tables, "tasks", index, "task_id", tasks_of)}
    columns = None if full else _SHOWN_TURN_COLUMNS
    rows = {
        name: _rows(tables, name, index, "episode_id", ids, columns if name == "turns" else None)
        for name in ("turns", "rewards", "credit")
    }
    scored = {r["episode_id"]: r for r in _rows(tables, "evaluation", index, "episode_id", ids)}
    return [
        Played(
            episodes[e],
            tasks.get(episodes[e]["task_id"]),
            evaluation=scored.get(e),
            **{name: [r for r in table if r["episode_id"] == e] for name, table in rows.items()},
        )
        for e in ids
    ]


def load_episodes(tables: Mapping[str, TableRef], index: int, ids: Sequence[str]) -> list[Played]:
    """These episodes of part `index`, in the order of `ids`, without token ids and logprobs."""
    return _load(tables, index, ids, full=False)


def _rows(
    tables: Mapping[str, TableRef],
    name: str,
    index: int,
    key: str,
    values: Sequence[str],
    columns: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    if name not in tables or index >= len(tables[name].parts):
        return []
    table = tables[name].read_part(index, columns)
    rows: list[dict[str, Any]] = table.filter(pc.is_in(table[key], pa.array(values, pa.string()))).to_pylist()
    return rows
