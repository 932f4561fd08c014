"""One episode as a tree of spans in time, as trace viewers show it. Pure, and without MLflow.

The episode is the root. A turn hangs under its branch, a branch under the branch that it is of, for as
long as the branch ran: what ran side by side stands side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.store.episodes import Row, scores_of
from pipeline.store.samples import Chosen
from pipeline.traces.course import course_of
from workflows.vocabulary import Event, Origin, Status

ROOT: Final = "episode"
SPAN_TYPES: Final[Mapping[str, str]] = {
    Event.LLM: "CHAT_MODEL",
    Event.TOOL: "TOOL",
    Event.CONTROL: "TASK",
}
_OUTCOME: Final = ("status", "status_detail", "finish_reason", "format_valid")
_ATTRIBUTES: Final = (
    *("role", "model_id", "policy_version", "turn_index", "step", "round", "branch", "parents", "act"),
    *("instance", "attempts", "num_cached_tokens", "base_episode_id", "replay_from_turn"),
)
_JSON_ATTRIBUTES: Final = ("parsed", "cut", "sampling")
_EARNED: Final = ("reward", "reward_parts", "no_reward_reason", "return", "advantage", "channels", "excluded")


@dataclass(slots=True)
class Span:
    """A piece of an episode. Times are nanoseconds since the epoch; `kind` is a span type of MLflow."""

    key: str  # unique within the episode
    parent: str | None
    name: str
    kind: str
    start: int
    end: int
    problem: str | None = None  # why it is not ok
    inputs: Any = None
    outputs: Any = None
    tokens: tuple[int, int] | None = None  # of prompt and response
    model: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    moments: dict[str, int] = field(default_factory=dict)  # by name, what happened when
    links: list[tuple[str, str]] = field(default_factory=list)  # keys of spans that led here, and as what


@dataclass(frozen=True, slots=True)
class Trace:
    """An episode's spans, the root first, and what is said of the whole."""

    episode_id: str  # of an evaluation, after that: training may have played an episode of the same id
    spans: tuple[Span, ...]
    tags: Mapping[str, str]
    values: Mapping[str, float]  # its return and its reward parts, each a mean over its turns; its metrics
    gold: Any = None


def trace_of(chosen: Chosen, evaluation: str | None = None) -> Trace:
    """The trace of a stored episode; missing times are those of the turn before.

    Args:
        evaluation: the split and number of the evaluation that it is of, `dev/00010`.
    """
    played = chosen.played
    episode = played.episode
    start = round((episode["started_at"] or 0.0) * 1e9)
    root = Span(
        ROOT, None, episode["episode_id"], "CHAIN", start, start + _nanoseconds(episode["seconds"] or 0.0)
    )
    root.inputs = _value(played.task["inputs"]) if played.task else None
    root.problem = None if episode["status"] == Status.OK else _problem(episode["status"], episode["error"])
    root.attributes = {c: episode[c] for c in ("status", "error", "stop_reason", "num_turns", "task_id")}
    spans, earned = [root], _earned(played.rewards, played.credit)
    branches: dict[str, Span] = {}
    last = 0.0
    for turn in sorted(played.turns, key=lambda t: t["turn_index"]):
        if not turn["branch"]:
            branches.clear()  # what comes after the trunk goes on is another branch, of the same name or not
        span = _turn_span(turn, earned.get(turn["turn_index"], {}), start, last)
        above = _branch_of(turn["branch"] or "", branches, spans, span)
        span.parent = above.key
        spans.append(span)
        last = (span.end - start) / 1e9
        _widen(above, branches, span)
        if turn["event"] == Event.LLM and span.outputs is not None:
            root.outputs = {"answer": _value(turn["parsed"]) or turn["response_text"]}
    _link(spans, played.turns)
    root.end = max(root.end, *(span.end for span in spans))
    tags = {c: str(episode[c]) for c in ("iteration", "task_id", "split", "status", "stop_reason")}
    tags |= {"episode": episode["episode_id"], "chosen": chosen.why}
    if evaluation is not None:
        tags["evaluation"] = evaluation
    return Trace(
        "/".join(filter(None, (evaluation, episode["episode_id"]))),
        tuple(spans),
        tags,
        _values(earned.values())
        | {name: value for name, value in scores_of(played.evaluation).items() if value is not None},
        _alone(_value(played.task["gold"])) if played.task else None,
    )


def _link(spans: Iterable[Span], turns: Iterable[Row]) -> None:
    """Link each turn to those that led to it, and say where it stands in the course of the episode."""
    course = course_of(sorted(turns, key=lambda turn: turn["turn_index"]))
    by_key = {span.key: span for span in spans}
    for arrow in course.arrows:
        by_key[_key(arrow.target)].links.append((_key(arrow.source), arrow.kind))
    for index, mark in course.marks.items():
        attributes = by_key[_key(index)].attributes
        attributes |= {"agent": course.lanes[mark.lane], "critical": mark.critical}
        if course.unit == "seconds":
            attributes |= {"modelled_seconds": [mark.begin, mark.end], "slack_seconds": mark.slack}


def _key(turn_index: int) -> str:
    return f"turn {turn_index}"


def _turn_span(turn: Row, earned: Mapping[str, Any], epoch: int, last: float) -> Span:
    begun = next((turn[c] for c in ("started_at", "queued_at") if turn[c] is not None), last)
    ended = turn["ended_at"] if turn["ended_at"] is not None else begun
    span = Span(
        _key(turn["turn_index"]),
        ROOT,
        turn["step"] or "turn",
        SPAN_TYPES.get(turn["event"], "UNKNOWN"),
        epoch + _nanoseconds(begun),
        epoch + _nanoseconds(max(begun, ended)),
    )
    if turn["status"] != Status.OK:
        span.problem = _problem(turn["status"], turn["status_detail"])
    if turn["event"] == Event.TOOL:
        span.name = f"{span.name}: {turn['tool']}" if turn["tool"] else span.name
        span.inputs, span.outputs = _value(turn["tool_request"]), _value(turn["tool_result"])
    else:
        _speak(span, turn)
    attributes = {c: turn[c] for c in _OUTCOME} | {c: earned.get(c) for c in _EARNED}
    attributes |= {c: turn[c] for c in _ATTRIBUTES} | {c: _value(turn[c]) for c in _JSON_ATTRIBUTES}
    attributes["origin"] = turn["origin"] if turn["origin"] != Origin.SAMPLED else None
    span.attributes = {name: value for name, value in attributes.items() if value not in (None, "", [])}
    moments = {"queued": turn["queued_at"], "first token": turn["first_token_at"]}
    span.moments = {name: epoch + _nanoseconds(at) for name, at in moments.items() if at is not None}
    return span


def _speak(span: Span, turn: Row) -> None:
    """Set the prompt and the reply of an llm turn, in the form that viewers show as a conversation."""
    messages = _value(turn["messages"])
    span.inputs = {"messages": messages} if messages is not None else None
    if turn["response_text"] is not None:
        said = {"role": "assistant", "content": turn["response_text"]}
        span.outputs = {"choices": [{"message": said, "finish_reason": turn["finish_reason"]}]}
    known = turn["num_prompt_tokens"] is not None and turn["num_response_tokens"] is not None
    if known and turn["origin"] != Origin.COPIED:  # of another episode's trace, which has its tokens
        span.tokens = (turn["num_prompt_tokens"], turn["num_response_tokens"])
    if turn["model_id"]:
        span.model = f"{turn['model_id']}@{turn['policy_version']}"
    if turn["role"] and turn["role"] != span.name:
        span.name = f"{span.name}: {turn['role']}"


def _branch_of(branch: str, branches: dict[str, Span], spans: list[Span], turn: Span) -> Span:
    """The span of a branch, `1.0` being branch 0 of branch 1; where there is none, one for this turn."""
    if not branch:
        return spans[0]
    if branch not in branches:
        above = _branch_of(branch.rpartition(".")[0], branches, spans, turn)
        key = f"branch {branch} #{len(spans)}"
        branches[branch] = Span(key, above.key, f"branch {branch}", "CHAIN", turn.start, turn.end)
        spans.append(branches[branch])
    return branches[branch]


def _widen(above: Span, branches: Mapping[str, Span], turn: Span) -> None:
    """Let the branches that a turn is in last as long as it does."""
    by_key = {span.key: span for span in branches.values()}
    at: Span | None = by_key.get(above.key)
    while at is not None:
        at.start, at.end = min(at.start, turn.start), max(at.end, turn.end)
        at = by_key.get(at.parent or "")


def _earned(*tables: Iterable[Row]) -> dict[int, dict[str, Any]]:
    """By turn, the columns of rewards and credit that say something of it."""
    earned: dict[int, dict[str, Any]] = {}
    for row in (row for table in tables for row in table):
        values = {c: v for c, v in row.items() if c in _EARNED and v is not None}
        for named in ("reward_parts", "channels"):
            if parts := values.get(named):
                values[named] = {p["name"]: p["value"] for p in parts}
        earned.setdefault(row["turn_index"], {}).update(values)
    return earned


def _values(earned: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    gathered: dict[str, list[float]] = {}
    for row in earned:
        values = {"return": row.get("return"), **(row.get("reward_parts") or {})}
        for name, value in values.items():
            if value is not None:
                gathered.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in gathered.items()}


def _alone(value: Any) -> Any:
    """The value of a mapping that has a single one."""
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _problem(status: str, detail: str | None) -> str:
    return f"{status}: {detail}" if detail else status


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _value(text: Any) -> Any:
    """A JSON column as a value; text that is not JSON stays text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
