"""Stored runs of any size, made without an engine: what replays, ablations and their benchmarks read.

The team is that of M-ASK: a plan and an answer, then rounds of search, retrieval, summary, update and a
new answer. Texts are drawn, tables are the run's own, written part by part.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from stages.base import StageResult
from stages.parts import map_parts
from stages.tables.parquet import Part, TableRef, TableSink
from workflows.trajectory import EPISODES, TASKS, TURNS

ROLES = {
    "plan": "planner",
    "answer": "answerer",
    "search": "searcher",
    "summarise": "summariser",
    "update": "updater",
}
SYLLABLES = ("am", "ber", "bas", "cor", "del", "fen", "gar", "hol", "in", "jun", "kel", "lor", "mar", "nor")
WORDS = tuple(a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES)
ON_RAY = 20  # so many parts are written by several processes
ROUND = ("search", "retrieve", "summarise", "update", "answer")
SHARED = {"full": dict.fromkeys(ROLES.values(), "team"), "separate": {r: r for r in ROLES.values()}}


@dataclass(frozen=True)
class Shape:
    """How large a stored iteration is: a part holds `tasks_per_part` groups of `group_size` episodes."""

    turns: int
    group_size: int = 8
    tasks_per_part: int = 32
    rounds: int = 2
    prompt_tokens: int = 40
    response_tokens: int = 12

    @property
    def turns_per_episode(self) -> int:
        return 2 + self.rounds * len(ROUND)

    @property
    def parts(self) -> int:
        return max(1, round(self.turns / (self.turns_per_episode * self.group_size * self.tasks_per_part)))


@dataclass(frozen=True)
class Made:
    """A stage that has run elsewhere: as much of it as its manifest says."""

    name: str
    folder: str
    outputs: Mapping[str, pa.Schema]
    places: Mapping[str, str]
    lease: str = "none"
    inputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    run: Callable[..., Any] = lambda *_: None


SAMPLE = Made("sample", "tasks", {"tasks": TASKS}, {"tasks": ""})
ROLLOUT = Made(
    "rollout", "rollout", {"turns": TURNS, "episodes": EPISODES}, {"turns": "turns", "episodes": "episodes"}
)


def settings_of(root: str, sharing: str = "full", **changes: Any) -> Settings:
    """Settings as a run keeps them: with every role's model filled in."""
    of_role = SHARED[sharing]
    raw: dict[str, Any] = {
        "run": {"name": "stored", "root": root},
        "workflow": {"use": "mask", "options": {"max_rounds": 2}},
        "roles": {role: {"model": model} for role, model in of_role.items()},
        "models": {
            m: {"checkpoint": "/nowhere/at-all", "engine": "scripted"}
            for m in dict.fromkeys(of_role.values())
        },
        "rewards": [{"use": "f1_by_round"}],
        "credit": {"options": {"by": "task_role"}},
        "tracking": {"uri": "none"},
        "cluster": {"object_store_gib": 0.2},
    }
    return parse_settings(raw | changes)


def write_run(settings: Settings) -> Run:
    """A run's folder without iterations."""
    run = Run(settings.run.root, settings.run.name)
    run.write_info(
        name=run.name,
        identity={"workflow": {"use": settings.workflow.use}},
        regime="full",
        created_at=0.0,
        used_at=0.0,
        tracker={},
    )
    run.folder.write_text("settings.toml", settings_toml(settings))
    return run


def write_rollout(
    place: IterationStore, shape: Shape, seed: int = 0, models: Mapping[str, str] = SHARED["full"]
) -> dict[str, TableRef]:
    """Write tasks, turns and episodes of one iteration, with manifests; the tables by name."""
    sinks = place.sinks(SAMPLE) | place.sinks(ROLLOUT)
    if shape.parts < ON_RAY:
        written = [write_part(k, place.index, shape, seed, models, sinks) for k in range(shape.parts)]
    else:
        written = map_parts(
            write_part,
            range(shape.parts),
            iteration=place.index,
            shape=shape,
            seed=seed,
            models=models,
            sinks=sinks,
        )
    parts: dict[str, list[Part]] = {name: [receipt[name] for receipt in written] for name in sinks}
    for stage in (SAMPLE, ROLLOUT):
        result = StageResult({name: parts[name] for name in stage.outputs})
        place.commit(stage, result, {"seed": seed}, {}, 0.0)  # type: ignore[arg-type]
    return {name: sink.ref(parts[name]) for name, sink in sinks.items()}


def write_part(
    number: int,
    iteration: int,
    shape: Shape,
    seed: int,
    models: Mapping[str, str],
    sinks: Mapping[str, TableSink],
) -> dict[str, Part]:
    tables = part_tables(iteration, number, shape, seed, models)
    return {name: sinks[name].write_part(number, table) for name, table in tables.items()}


def part_tables(
    iteration: int, number: int, shape: Shape, seed: int, models: Mapping[str, str]
) -> dict[str, pa.Table]:
    """One part of the three tables: column by column, for speed."""
    draw = random.Random(f"{seed}/{iteration}/{number}")
    tasks = [f"t{number:04d}-{i:02d}" for i in range(shape.tasks_per_part)]
    golds = {task: " ".join(draw.sample(WORDS, 2)) for task in tasks}
    turns: dict[str, list[Any]] = {name: [] for name in TURNS.names}
    episodes: dict[str, list[Any]] = {name: [] for name in EPISODES.names}
    for task in tasks:
        for sample in range(shape.group_size):
            _episode(draw, iteration, task, sample, golds[task], shape, models, turns, episodes)
    turns |= _tokens(turns["event"], shape, draw.getrandbits(32))
    rows = {
        "task_id": tasks,
        "split": ["train"] * len(tasks),
        "source": ["drawn"] * len(tasks),
        "inputs": [json.dumps({"question": f"Which of {task}?"}) for task in tasks],
        "gold": [json.dumps({"answers": [golds[task], "none of " + golds[task]]}) for task in tasks],
        "row_hash": tasks,
    }
    return {
        "tasks": pa.table(rows, TASKS),
        "turns": pa.table(turns, TURNS),
        "episodes": pa.table(episodes, EPISODES),
    }


def _episode(
    draw: random.Random,
    iteration: int,
    task: str,
    sample: int,
    gold: str,
    shape: Shape,
    models: Mapping[str, str],
    turns: dict[str, list[Any]],
    episodes: dict[str, list[Any]],
) -> None:
    group = f"{iteration:05d}/{task}"
    identity = (iteration, 0, "train", task, group, sample, f"{group}/{sample}")
    steps = ["plan", "answer", *ROUND * shape.rounds]
    for position, step in enumerate(steps):
        round = max(0, (position - 2) // len(ROUND) + (step == "answer") if position > 1 else 0)
        row = _turn(draw, position, step, round, gold, shape, models)
        for name, value in zip(TURNS.names, identity, strict=False):
            turns[name].append(value)
        for name in TURNS.names[len(identity) :]:
            turns[name].append(row.get(name))
    failed = draw.random() < 0.01
    values = (*identity, "timeout" if failed else "ok", None, "finished", len(steps), 0, 0, 0.0, 1.0)
    for name, value in zip_longest(EPISODES.names, values):
        episodes[name].append(value)


def _turn(
    draw: random.Random,
    position: int,
    step: str,
    round: int,
    gold: str,
    shape: Shape,
    models: Mapping[str, str],
) -> dict[str, Any]:
    if step == "retrieve":
        found = json.dumps([{"title": w, "text": f"{w} lies by the {w}"} for w in draw.sample(WORDS, 2)])
        return {
            "turn_index": position,
            "step": step,
            "round": round,
            "branch": "",
            "parents": [position - 1],
            "event": "tool",
            "trainable": False,
            "status": "ok",
            "tool": "retriever",
            "tool_request": json.dumps({"query": gold}),
            "tool_result": found,
            "metrics": [],
        }
    text, parsed, valid = _said(draw, step, gold)
    role = ROLES[step]
    return {
        "turn_index": position,
        "step": step,
        "round": round,
        "branch": "",
        "parents": [position - 1] if position else [],
        "event": "llm",
        "role": role,
        "model_id": models[role],
        "base_id": models[role],
        "policy_version": 0,
        "trainable": True,
        "sampling": '{"temperature":1.0}',
        "num_prompt_tokens": shape.prompt_tokens,
        "num_response_tokens": shape.response_tokens,
        "context_hash": f"{draw.getrandbits(64):016x}",
        "messages": json.dumps([{"role": "user", "content": f"{step}: which of them is it? {gold}"}]),
        "response_text": text,
        "parsed": json.dumps(parsed),
        "format_valid": valid,
        "status": "ok" if valid else "malformed",
        "finish_reason": "stop",
        "metrics": [{"name": "words", "value": float(len(text.split()))}],
    }


def _tokens(events: list[str], shape: Shape, seed: int) -> dict[str, pa.Array]:
    """Token columns of llm turns, null for the others."""
    draw = np.random.default_rng(seed)
    llm = np.array([event == "llm" for event in events])

    def lists(length: int, values: Callable[[int], Any], kind: pa.DataType) -> pa.Array:
        offsets = pa.array(np.concatenate([[0], np.cumsum(llm * length)]).astype(np.int32))
        numbers = pa.array(values(int(llm.sum()) * length), kind)
        return pa.ListArray.from_arrays(offsets, numbers, mask=pa.array(~llm))

    def ids(count: int) -> Any:
        return draw.integers(0, 49152, count, dtype=np.int32)

    def logprobs(count: int) -> Any:
        return -draw.exponential(0.5, count).astype(np.float32)

    return {
        "prompt_token_ids": lists(shape.prompt_tokens, ids, pa.int32()),
        "response_token_ids": lists(shape.response_tokens, ids, pa.int32()),
        "behaviour_logprobs": lists(shape.response_tokens, logprobs, pa.float32()),
    }


def _said(draw: random.Random, step: str, gold: str) -> tuple[str, Any, bool]:
    """Text, parsed value and whether the format holds."""
    valid = draw.random() < 0.9
    words = " ".join(draw.choices((*draw.choices(WORDS, k=2), *gold.split()), k=draw.randint(1, 3)))
    if step == "plan":
        return f"<answer>{words}</answer>", {"answer": words, "steps": [words]}, valid
    if step == "search":
        return f"<search>{words}</search>", {"action": "search", "query": words}, valid
    return f"<{step}>{words}</{step}>", words, valid


def write_iterations(settings: Settings, shape: Shape, count: int = 1) -> tuple[Run, list[IterationStore]]:
    """A run with `count` iterations that end after their rollout."""
    run = write_run(settings)
    models = {role: str(section.model) for role, section in settings.roles.items()}
    places = [run.iteration(index) for index in range(count)]
    for place in places:
        write_rollout(place, shape, seed=settings.run.seed, models=models)
    return run, places
