"""One stored episode with all that its tables say of it, read part by part."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.store.finished import Finished
from stages.tables.parquet import TableRef
from workflows.vocabulary import Event

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode's rows. Rewards, credit and what else traces said of turns are by `turn_index`."""

    row: Row
    task: Row | None
    turns: Sequence[Row]  # by turn_index
    rewards: Mapping[int, Row] = field(default_factory=dict)
    credit: Mapping[int, Row] = field(default_factory=dict)
    evaluation: Row | None = None
    traced: Mapping[int | None, Mapping[str, Any]] = field(default_factory=dict)  # extra; None: of the whole
    refs: Mapping[int, str] = field(default_factory=dict)  # what stands for texts that were withheld

    @property
    def episode_id(self) -> str:
        return str(self.row["episode_id"])

    @property
    def mean_reward(self) -> float | None:
        """The episode's reward: the mean over the turns that have one."""
        return mean([r["reward"] for r in self.rewards.values() if r.get("reward") is not None])

    def children_of(self) -> dict[int, list[Row]]:
        """By turn_index, the turns that read it or were decided by it."""
        children: dict[int, list[Row]] = {turn["turn_index"]: [] for turn in self.turns}
        for turn in self.turns:
            for source in sources_of(turn):
                children.setdefault(source, []).append(turn)
        return children


def sources_of(turn: Row) -> list[int]:
    """The turns that one came of: those that it read, and the one that decided it."""
    decided = turn.get("decided_by")
    return list(dict.fromkeys([*(turn.get("parents") or ()), *([] if decided is None else [decided])]))


def mean(values: Sequence[float]) -> float | None:
    """The mean of finite values; None of none."""
    finite = [v for v in values if math.isfinite(v)]
    return math.fsum(finite) / len(finite) if finite else None


def agents_of(turns: Sequence[Row]) -> dict[int, str]:
    """Who acts in each turn, by turn_index: `reader#0` in branch 0, a spawned play by its name.

    A tool is called by whoever said what it was asked; what the workflow computes by itself is its own.
    """
    agents: dict[int, str] = {}
    by_index = {turn["turn_index"]: turn for turn in turns}
    for turn in turns:
        decider = turn.get("decided_by")
        if turn.get("act") is not None and turn["event"] != Event.LLM and decider in agents:
            agents[turn["turn_index"]] = agents[decider]
        elif turn["event"] == Event.TOOL:
            spoken = [p for p in turn.get("parents") or () if by_index.get(p, {}).get("event") == Event.LLM]
            own = turn.get("instance")
            agents[turn["turn_index"]] = own or (agents[spoken[0]] if spoken else WORKFLOW)
        elif turn.get("instance"):
            agents[turn["turn_index"]] = str(turn["instance"])
        elif turn.get("role"):
            branch = turn.get("branch")
            agents[turn["turn_index"]] = f"{turn['role']}#{branch}" if branch else str(turn["role"])
        else:
            agents[turn["turn_index"]] = WORKFLOW
    return agents


WORKFLOW = "workflow"  # acts where the workflow's own code does
USER = "user"  # gets what nobody else reads


def episodes_of(place: Finished) -> Iterator[Episode]:
    """The episodes of a place in the order of their ids, part by part: memory is that of one part."""
    tables = place.measured
    for index in range(len(tables["episodes"].parts) if "episodes" in tables else 0):
        yield from _part(tables, index)


def _part(tables: Mapping[str, TableRef], index: int) -> Iterator[Episode]:
    tasks = {row["task_id"]: row for row in _rows(tables, "tasks", index)}
    turns, rewards, credit, evaluation, traced = (
        _by_episode(_rows(tables, name, index))
        for name in ("turns", "rewards", "credit", "evaluation", "traced")
    )
    for row in sorted(_rows(tables, "episodes", index), key=lambda r: (r["task_id"], r["sample"])):
        key = row["episode_id"]
        said = traced.get(key, ())
        yield Episode(
            row,
            tasks.get(row["task_id"]),
            sorted(turns.get(key, ()), key=lambda t: t["turn_index"]),
            {r["turn_index"]: r for r in rewards.get(key, ())},
            {r["turn_index"]: r for r in credit.get(key, ())},
            next(iter(evaluation.get(key, ())), None),
            {r["turn_index"]: json.loads(r["extra"]) for r in said if r["extra"] is not None},
            {r["turn_index"]: r["content_ref"] for r in said if r["content_ref"] is not None},
        )


def _rows(tables: Mapping[str, TableRef], name: str, index: int) -> list[dict[str, Any]]:
    if name not in tables or index >= len(tables[name].parts):
        return []
    rows: list[dict[str, Any]] = tables[name].read_part(index).to_pylist()
    return rows


def _by_episode(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["episode_id"], []).append(row)
    return grouped
