"""Strict validation of one ATIF trajectory (version 1.8), those inside it included.

What the format's models accept is accepted, but for kinds of values that they convert (a number in a string),
numbers that are not finite, and logprobs that are not one for each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pipeline.traces.problem import Problem, is_number, kind_name, shown

RULES: Final[Mapping[str, str]] = {
    "object": "a trajectory is a JSON object, and so is everything in it that has keys",
    "required": "a key that the format requires is there",
    "unknown-key": "nothing has a key that the format lacks; `extra` holds what else there is",
    "type": "a value is of the kind that the format says",
    "enum": "a source is system, user or agent, a part text, image or audio",
    "minimum": "counts are 0 or more, steps count from 1",
    "not-finite": "numbers are finite",
    "step-order": "steps are numbered 1, 2, 3, …",
    "timestamp": "times are ISO 8601",
    "agent-only": "model, reasoning, tool calls and metrics are of steps of the agent",
    "no-call": "a step without a call of a model has no metrics and no reasoning",
    "call-reference": "a result names a tool call of its own step",
    "content-part": "a part has its text, or a source of its own kind",
    "subagent-id": "a trajectory inside another has an id, and no other there has the same",
    "subagent-reference": "a reference to a trajectory has an id or a path",
    "logprobs": "there are as many logprobs as completion tokens",
    "json": "a line is one JSON value",
    "duplicate-trace": "a trajectory's id is its own among all documents",
}
"""Every rule by its name, with what it says."""

_AGENT_ONLY: Final = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")

Check = Callable[[Any, str], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The keys of an object: those that must be there, and of each what its value is checked by. Null is
    allowed where the key is not required."""

    required: tuple[str, ...]
    checks: Mapping[str, Check]

    def __call__(self, value: Any, where: str) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield Problem("object", where, f"expected an object, got {kind_name(value)}")
            return
        for key in self.required:
            if key not in value:
                yield Problem("required", _at(where, key), "it is missing")
        for key, inner in value.items():
            check = self.checks.get(key)
            if check is None:
                yield Problem("unknown-key", _at(where, str(key)), "the format has no such key here")
            elif inner is not None or key in self.required:
                yield from check(inner, _at(where, key))


def problems_of(trajectory: Any) -> list[Problem]:
    """Every rule that a trajectory breaks; none for one that is as it should be."""
    return list(_trajectory(trajectory, ""))


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _kind(kind: type | tuple[type, ...], name: str) -> Check:
    def check(value: Any, where: str) -> Iterator[Problem]:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            yield Problem("type", where, f"expected {name}, got {kind_name(value)}")

    return check


def _number(name: str, whole: bool = False, least: float | None = None) -> Check:
    def check(value: Any, where: str) -> Iterator[Problem]:
        if not is_number(value) or (whole and not isinstance(value, int)):
            yield Problem("type", where, f"expected {name}, got {kind_name(value)}")
        elif not math.isfinite(value):
            yield Problem("not-finite", where, f"expected a finite number, got {value}")
        elif least is not None and value < least:
            yield Problem("minimum", where, f"expected {least:g} or more, got {shown(value)}")

    return check


def _word(*known: str) -> Check:
    def check(value: Any, where: str) -> Iterator[Problem]:
        if value not in known:
            yield Problem("enum", where, f"got {shown(value)}, expected one of {', '.join(known)}")

    return check


def _list(check: Check) -> Check:
    def of_list(value: Any, where: str) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield Problem("type", where, f"expected an array, got {kind_name(value)}")
            return
        for k, item in enumerate(value):
            yield from check(item, f"{where}[{k}]")

    return of_list


def _numbers(whole: bool) -> Check:
    name = "whole numbers" if whole else "numbers"
    one = _number(name, whole)

    def check(value: Any, where: str) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield Problem("type", where, f"expected an array of {name}, got {kind_name(value)}")
            return
        fits = int if whole else (int, float)
        if all(type(v) is int or (isinstance(v, fits) and not isinstance(v, bool)) for v in value) and (
            whole or all(map(math.isfinite, value))
        ):
            return  # long lists in one go
        yield from _first(problem for k, v in enumerate(value) for problem in one(v, f"{where}[{k}]"))

    return check


def _first(problems: Iterator[Problem]) -> Iterator[Problem]:
    """One problem stands for all of a long list."""
    found = next(problems, None)
    if found is not None:
        yield found


def _time(value: Any, where: str) -> Iterator[Problem]:
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (ValueError, AttributeError):
        yield Problem("timestamp", where, f"expected a time in ISO 8601, got {shown(value)}")


def _content(value: Any, where: str) -> Iterator[Problem]:
    if isinstance(value, list):
        for k, part in enumerate(value):
            yield from _part(part, f"{where}[{k}]")
    elif not isinstance(value, str):
        yield Problem("type", where, f"expected a string or an array of parts, got {kind_name(value)}")


def _effort(value: Any, where: str) -> Iterator[Problem]:
    if not isinstance(value, str) and not is_number(value):
        yield Problem("type", where, f"expected a string or a number, got {kind_name(value)}")


_TEXT: Final = _kind(str, "a string")
_OBJECT: Final = _kind(dict, "an object")
_COUNT: Final = _number("a whole number", whole=True)
_AGENT: Final = _Shape(
    ("name", "version"),
    {
        "name": _TEXT,
        "version": _TEXT,
        "model_name": _TEXT,
        "tool_definitions": _list(_OBJECT),
        "extra": _OBJECT,
    },
)
_SOURCE: Final = _Shape(
    ("media_type", "path"),
    {"media_type": _TEXT, "path": _TEXT, "duration_sec": _number("a number", least=0)},
)
_PART: Final = _Shape(("type",), {"type": _word("text", "image", "audio"), "text": _TEXT, "source": _SOURCE})
_CALL: Final = _Shape(
    ("tool_call_id", "function_name", "arguments"),
    {"tool_call_id": _TEXT, "function_name": _TEXT, "arguments": _OBJECT, "extra": _OBJECT},
)
_METRICS_SHAPE: Final = _Shape(
    (),
    {
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), _COUNT),
        "cost_usd": _number("a number"),
        **dict.fromkeys(("prompt_token_ids", "completion_token_ids"), _numbers(whole=True)),
        "logprobs": _numbers(whole=False),
        "extra": _OBJECT,
    },
)
_TOTALS: Final = _Shape(
    (),
    {
        **dict.fromkeys(
            ("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_steps"), _COUNT
        ),
        "total_cost_usd": _number("a number"),
        "extra": _OBJECT,
    },
)
_REFERENCE_SHAPE: Final = _Shape(
    (),
    {
        **dict.fromkeys(("trajectory_id", "trajectory_path", "session_id"), _TEXT),
        "extra": _OBJECT,
    },
)


def _part(value: Any, where: str) -> Iterator[Problem]:
    found = [*_PART(value, where)]
    yield from found
    if found:
        return
    text, source = value.get("text"), value.get("source")
    if value["type"] == "text":
        if text is None or source is not None:
            yield Problem("content-part", where, "a part of type text has a text and no source")
        return
    kind = source["media_type"].partition("/")[0] if source else None
    if text is not None or kind != value["type"]:
        yield Problem(
            "content-part", where, f"a part of type {value['type']} has a source of that kind and no text"
        )


def _metrics(value: Any, where: str) -> Iterator[Problem]:
    found = [*_METRICS_SHAPE(value, where)]
    yield from found
    if found:
        return
    ids, logprobs = value.get("completion_token_ids"), value.get("logprobs")
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        yield Problem(
            "logprobs", f"{where}.logprobs", f"there are {len(logprobs)} for {len(ids)} completion tokens"
        )


def _reference(value: Any, where: str) -> Iterator[Problem]:
    found = [*_REFERENCE_SHAPE(value, where)]
    yield from found
    if not found and value.get("trajectory_id") is None and value.get("trajectory_path") is None:
        yield Problem("subagent-reference", where, "it has neither trajectory_id nor trajectory_path")


_RESULT: Final = _Shape(
    (),
    {
        "source_call_id": _TEXT,
        "content": _content,
        "subagent_trajectory_ref": _list(_reference),
        "extra": _OBJECT,
    },
)
_OBSERVATION: Final = _Shape(("results",), {"results": _list(_RESULT)})
_STEP: Final = _Shape(
    ("step_id", "source", "message"),
    {
        "step_id": _number("a whole number", whole=True, least=1),
        "timestamp": _time,
        "source": _word("system", "user", "agent"),
        "model_name": _TEXT,
        "reasoning_effort": _effort,
        "message": _content,
        "reasoning_content": _TEXT,
        "tool_calls": _list(_CALL),
        "observation": _OBSERVATION,
        "metrics": _metrics,
        "extra": _OBJECT,
        "llm_call_count": _number("a whole number", whole=True, least=0),
        "is_copied_context": _kind(bool, "a boolean"),
    },
)


def _step(step: Any, where: str) -> Iterator[Problem]:
    found = [*_STEP(step, where)]
    yield from found
    if found:
        return
    if step["source"] != "agent":
        for key in _AGENT_ONLY:
            if step.get(key) is not None:
                yield Problem("agent-only", f"{where}.{key}", f"the step is of source {step['source']}")
    elif step.get("llm_call_count") == 0:
        for key in ("metrics", "reasoning_content"):
            if step.get(key) is not None:
                yield Problem("no-call", f"{where}.{key}", "the step says that no model was called")
    calls, observation = step.get("tool_calls"), step.get("observation")
    if calls is None or observation is None:
        return
    names = {call["tool_call_id"] for call in calls}
    for k, result in enumerate(observation["results"]):
        name = result.get("source_call_id")
        if name is not None and name not in names:
            yield Problem(
                "call-reference",
                f"{where}.observation.results[{k}].source_call_id",
                f"no tool call of the step has the id {shown(name)}",
            )


def _steps(value: Any, where: str) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield Problem("type", where, f"expected an array, got {kind_name(value)}")
        return
    for k, step in enumerate(value):
        yield from _step(step, f"{where}[{k}]")
        number = step.get("step_id") if isinstance(step, Mapping) else None
        if isinstance(number, int) and number >= 1 and number != k + 1:
            yield Problem("step-order", f"{where}[{k}].step_id", f"expected {k + 1}, got {number}")


def _trajectory(value: Any, where: str) -> Iterator[Problem]:
    yield from _TRAJECTORY(value, where)
    inside = value.get("subagent_trajectories") if isinstance(value, Mapping) else None
    if isinstance(inside, list):
        yield from _ids([each for each in inside if isinstance(each, Mapping)], where)


def _ids(inside: Sequence[Mapping[str, Any]], where: str) -> Iterator[Problem]:
    seen: set[Any] = set()
    for k, each in enumerate(inside):
        name, place = each.get("trajectory_id"), f"{_at(where, 'subagent_trajectories')}[{k}].trajectory_id"
        if name is None:
            yield Problem("subagent-id", place, "it is missing")
        elif isinstance(name, str) and name in seen:
            yield Problem("subagent-id", place, f"another trajectory here has the id {shown(name)}")
        elif isinstance(name, str):
            seen.add(name)


_TRAJECTORY: Final = _Shape(
    ("schema_version", "agent", "steps"),
    {
        **dict.fromkeys(
            ("schema_version", "session_id", "trajectory_id", "notes", "continued_trajectory_ref"), _TEXT
        ),
        "agent": _AGENT,
        "steps": _steps,
        "final_metrics": _TOTALS,
        "extra": _OBJECT,
        "subagent_trajectories": _list(_trajectory),
    },
)
