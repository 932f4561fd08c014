"""Traces are judged strictly: each broken rule is refused by its name, and what is legal passes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from pydantic import ValidationError

from pipeline.traces.corpus import validate
from pipeline.traces.files import documents
from pipeline.traces.format import problems_of
from pipeline.traces.survey.words import RULES

Mutation = Callable[[dict[str, Any]], Any]


def survey() -> dict[str, Any]:
    """Decision, spawn, message, a tool's call and result, return, aggregate, despawn."""
    events: list[dict[str, Any]] = [
        {"id": "a", "t": 0, "type": "orchestrator_decision", "agent": "lead"},
        {"id": "b", "t": 1, "type": "spawn", "agent": "lead", "to": "helper"},
        {"id": "c", "t": 1, "type": "message", "agent": "lead", "from": "lead", "to": "helper"},
        {"id": "d", "t": 2, "type": "tool_call", "agent": "helper", "tool": "search"},
        {"id": "e", "t": 3, "type": "tool_result", "agent": "search", "tool": "search", "trusted": False},
        {"id": "f", "t": 4, "type": "return", "agent": "helper", "from": "helper", "to": "lead"},
        {"id": "g", "t": 5, "type": "aggregate", "agent": "lead"},
        {"id": "h", "t": 5, "type": "despawn", "agent": "lead", "to": "helper"},
    ]
    pairs = ("ab", "bc", "cd", "de", "ef", "fg", "gh")
    return {
        "trace_id": "t",
        "task_id": "q",
        "topology": "hierarchical",
        "events": events,
        "edges": [{"src": a, "dst": b, "type": "causal"} for a, b in pairs],
        "rewards": {"team": 1.0},
        "costs": {"tokens": 10, "wall_clock_s": 5.0, "tool_calls": 1, "messages": 1},
    }


def put(*path: Any, to: Any) -> Mutation:
    def mutate(trace: dict[str, Any]) -> None:
        at: Any = trace
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return mutate


def drop(*path: Any) -> Mutation:
    def mutate(trace: dict[str, Any]) -> None:
        at: Any = trace
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]

    return mutate


def edge(source: str, target: str) -> Mutation:
    return lambda trace: trace["edges"].append({"src": source, "dst": target, "type": "causal"})


BROKEN: list[tuple[str, Mutation]] = [
    # what the schema refuses and the script of its authors does not
    ("unknown-key", put("x", to=1)),
    ("unknown-key", put("edges", 0, "note", to="x")),
    ("enum", put("topology", to="ring")),
    ("required", drop("costs", "tokens")),
    ("type", put("rewards", "team", to="1")),
    ("empty", put("trace_id", to="")),
    ("type", put("events", 0, "agent", to=7)),
    # what the script refuses and the schema does not
    ("duplicate-id", put("events", 1, "id", to="a")),
    ("dangling-edge", put("edges", 0, "dst", to="nowhere")),
    ("negative-cost", put("costs", "usd", to=-1)),
    # both
    ("enum", put("events", 0, "type", to="stop")),
    ("enum", put("events", 0, "type", to="delegate")),
    ("enum", put("edges", 0, "type", to="reads")),
    ("empty", put("events", to=[])),
    ("minimum", put("events", 0, "t", to=-1)),
    ("negative-cost", put("costs", "tokens", to=-1)),
    # the script ends with a TypeError
    ("type", put("events", 0, "t", to="0")),
    ("type", put("costs", "tokens", to="10")),
    # neither
    ("cycle", edge("h", "g")),
    ("cycle", edge("a", "a")),
    ("time-order", edge("g", "b")),
    ("time-order", put("events", 3, "t", to=9)),
    ("tool", drop("events", 3, "tool")),
    ("from-to", drop("events", 2, "to")),
    ("from-to", drop("events", 5, "from")),
    ("not-finite", put("rewards", "team", to=math.nan)),
    ("not-finite", put("costs", "tokens", to=math.inf)),
    ("not-finite", put("events", 0, "t", to=math.nan)),
    ("tool-parent", put("edges", 3, "src", to="c")),
    ("spawn-order", put("events", 0, "agent", to="helper")),
    ("despawn-order", lambda t: (put("events", 7, "t", to=1)(t), t["edges"].pop())),
    ("cost-sum", put("costs", "tool_calls", to=2)),
    ("cost-sum", put("costs", "messages", to=0)),
    ("team-reward", put("events", 0, "x_mas", to={"cadre": {"earned": {"reward": 0.0}}})),
    ("type", put("costs", "tokens", to=True)),
    ("type", put("events", 0, "trusted", to="yes")),
    ("type", put("edges", to={})),
    ("required", drop("rewards")),
    ("required", drop("events", 0, "t")),
    ("object", put("events", 0, to=[])),
    ("object", put("metrics", to=[])),
]


@pytest.mark.parametrize(("rule", "mutate"), BROKEN)
def test_a_broken_rule_is_named(rule: str, mutate: Mutation) -> None:
    trace = survey()
    assert problems_of(trace) == []
    mutate(trace)
    found = problems_of(trace)
    assert rule in {problem.rule for problem in found}
    assert all(problem.rule in RULES and problem.text for problem in found)


def test_all_rules_of_single_traces_are_broken_above() -> None:
    assert set(RULES) - {rule for rule, _ in BROKEN} == {"json", "duplicate-trace"}


@pytest.mark.parametrize(
    "mutate",
    [
        put("events", 0, "confidence", to={"any": ["thing"]}),
        lambda trace: trace["events"].reverse(),  # no edge contradicts: times are what counts
    ],
)
def test_what_is_legal_passes(mutate: Mutation) -> None:
    trace = survey()
    mutate(trace)
    assert problems_of(trace) == []


@pytest.mark.parametrize("value", [None, 3, "x", [], {"events": 1}, {"a": 1}, {"steps": 1}])
def test_any_json_value_is_judged(value: Any) -> None:
    assert problems_of(value)


def trajectory() -> dict[str, Any]:
    call = {"tool_call_id": "c", "function_name": "search", "arguments": {"q": "x"}}
    steps = [
        {"step_id": 1, "source": "user", "message": "Why?", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "step_id": 2,
            "source": "agent",
            "message": [{"type": "text", "text": "Let me see."}],
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c", "content": "4"}]},
            "metrics": {"completion_token_ids": [1, 2], "logprobs": [-0.1, -2]},
        },
        {"step_id": 3, "source": "agent", "message": "", "llm_call_count": 0},
    ]
    inside = {"schema_version": "ATIF-v1.8", "trajectory_id": "s", "agent": {"name": "x", "version": "1"}}
    return {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "x", "version": "1"},
        "steps": steps,
        "subagent_trajectories": [{**inside, "steps": []}],
    }


BROKEN_TRAJECTORIES: list[tuple[str, Mutation]] = [
    ("unknown-key", put("x", to=1)),
    ("unknown-key", put("steps", 0, "x", to=1)),
    ("required", drop("agent", "version")),
    ("required", drop("steps", 0, "message")),
    ("required", drop("steps", 1, "tool_calls", 0, "arguments")),
    ("type", put("steps", 1, "tool_calls", 0, "arguments", to="x")),
    ("type", put("steps", 0, "message", to=4)),
    ("type", put("schema_version", to=None)),
    ("enum", put("steps", 0, "source", to="tool")),
    ("step-order", put("steps", 1, "step_id", to=5)),
    ("minimum", put("steps", 0, "step_id", to=0)),
    ("timestamp", put("steps", 0, "timestamp", to="yesterday")),
    ("agent-only", put("steps", 0, "model_name", to="m")),
    ("no-call", put("steps", 2, "metrics", to={})),
    ("call-reference", put("steps", 1, "observation", "results", 0, "source_call_id", to="d")),
    ("content-part", put("steps", 1, "message", to=[{"type": "text"}])),
    ("content-part", put("steps", 1, "message", to=[{"type": "image", "text": "x"}])),
    ("subagent-id", drop("subagent_trajectories", 0, "trajectory_id")),
    ("subagent-id", lambda t: t["subagent_trajectories"].append(t["subagent_trajectories"][0])),
    (
        "subagent-reference",
        put("steps", 1, "observation", "results", 0, "subagent_trajectory_ref", to=[{"session_id": "x"}]),
    ),
    ("type", put("steps", 1, "metrics", "completion_token_ids", to=[1.5, 2])),
]
STRICTER: list[tuple[str, Mutation]] = [  # than the models of the format
    ("logprobs", put("steps", 1, "metrics", "logprobs", to=[-0.1])),
    ("not-finite", put("steps", 1, "metrics", "logprobs", to=[-0.1, -math.inf])),
    ("type", put("steps", 0, "step_id", to="1")),
    ("type", put("steps", 1, "metrics", "prompt_tokens", to="3")),
]


@pytest.mark.parametrize(("rule", "mutate"), BROKEN_TRAJECTORIES)
def test_a_trajectory_is_refused_where_the_models_of_atif_refuse_it(rule: str, mutate: Mutation) -> None:
    value = copy.deepcopy(trajectory())
    assert problems_of(value) == []
    Trajectory.model_validate(value)
    mutate(value)
    assert rule in {problem.rule for problem in problems_of(value)}
    with pytest.raises(ValidationError):
        Trajectory.model_validate(value)


@pytest.mark.parametrize(("rule", "mutate"), STRICTER)
def test_trajectories_are_judged_more_strictly_than_the_models_do(rule: str, mutate: Mutation) -> None:
    value = trajectory()
    mutate(value)
    assert rule in {problem.rule for problem in problems_of(value)}
    Trajectory.model_validate(value)


def test_a_corpus_is_counted_by_rule_and_every_line_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    bad = survey() | {"trace_id": "u", "topology": "ring"}
    lines = [
        json.dumps(survey()),
        "{no json",
        "",
        json.dumps(bad),
        json.dumps(survey()),
        json.dumps(trajectory()),
    ]
    file.write_text("\n".join(lines))
    verdict = validate([str(file)])
    assert (verdict.documents, verdict.good, verdict.events) == (5, 2, 8 + 8 + 8 + 3)
    assert verdict.rules == {"json": 1, "enum": 1, "duplicate-trace": 1}
    assert [where for where, _ in verdict.examples] == [f"{file}, line {n}" for n in (2, 4, 5)]
    assert validate([str(file)], format="survey").refused == 4


def test_documents_lie_where_their_offsets_say(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"é": 1}\n\n{"b": 2}\n', encoding="utf-8")
    found = list(documents(str(file)))
    assert [d.value for d in found] == [{"é": 1}, {"b": 2}]
    assert [file.read_bytes()[d.offset :].split(b"\n")[0] for d in found] == [b'{"\xc3\xa9": 1}', b'{"b": 2}']
