"""An episode as one trace of the survey's schema."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Final

from pipeline.settings.program import version
from pipeline.traces.episode import Episode, mean
from pipeline.traces.extension import OURS, Source, content_ref, of_episode, of_turn
from pipeline.traces.rows import Content
from pipeline.traces.survey import words
from pipeline.traces.survey.events import Drawn, drawn
from pipeline.traces.survey.rules import message_id, turn_tokens

KEPT: Final = (
    "survey"  # in what was traced of an episode: the trace that it was read from, without Cadre's own
)
HELD: Final = ("trace_id", "system", "topology")  # names for which the schema has keys
_EVENT_KEYS: Final = words.EVENT_KEYS


def survey_trace(episode: Episode, source: Source, content: Content) -> dict[str, Any]:
    """The trace of an episode. One that was imported keeps the events, edges and names that it came with."""
    kept = episode.traced.get(None, {}).get(KEPT)
    if kept is None:
        return _own(episode, source, content)
    return _as_it_came(episode, source, content, kept)


def _own(episode: Episode, source: Source, content: Content) -> dict[str, Any]:
    graph = drawn(episode)
    _fill(graph, episode, content)
    graph.events[0][words.EXTENSION] = {OURS: of_episode(episode, source, content, HELD)}
    traced = episode.traced.get(None, {}).get("trace", {})
    trace: dict[str, Any] = {
        "trace_id": traced.get("trace_id") or f"{source.run}/{episode.episode_id}",
        "task_id": str(episode.row["task_id"]) or "task",
        "system": traced.get("system") or system_name(),
        "topology": traced.get("topology") or _topology(episode, source),
        "events": graph.events,
        "edges": graph.edges,
        "rewards": rewards_of(episode),
        "costs": _costs(episode, graph.events),
    }
    if metrics := _metrics(episode):
        trace["metrics"] = metrics
    return trace


def _as_it_came(
    episode: Episode, source: Source, content: Content, kept: Mapping[str, Any]
) -> dict[str, Any]:
    by_id: dict[str, dict[str, Any]] = {}
    for event in kept["events"]:
        # with its content withheld nothing may stay that could be content
        shown = {k: v for k, v in event.items() if content == "inline" or k in _EVENT_KEYS}
        if content == "none":
            shown.pop("content_ref", None)
        by_id[event["id"]] = shown
    for turn in episode.turns:
        event = by_id.get(episode.traced.get(turn["turn_index"], {}).get("event", ""))
        if event is not None:
            _extend(event, of_turn(episode, turn, content))
    extension = of_episode(episode, source, content, HELD)
    extension["kept"] = True
    if left := {k: v for k, v in extension.pop("traced", {}).items() if k != KEPT}:
        extension["traced"] = left
    events = list(by_id.values())
    _extend(events[0], extension)
    trace = {**kept["top"], "events": events, "edges": [dict(edge) for edge in kept["edges"]]}
    rewards, costs = dict(trace["rewards"]), dict(trace["costs"])
    now = episode.mean_reward
    if now is not None and not math.isclose(rewards.get("team", math.nan), now, rel_tol=1e-6, abs_tol=1e-6):
        rewards["team"] = now
    if any(_counted(turn) for turn in episode.turns):  # of its own tokens nothing was known before
        costs["tokens"] = sum(turn_tokens(turn) for turn in episode.turns)
    return {**trace, "rewards": rewards, "costs": costs}


def _extend(event: dict[str, Any], own: Mapping[str, Any]) -> None:
    """Put Cadre's own beside what the event's program had in the same place."""
    there = event.get(words.EXTENSION)
    there = there if isinstance(there, Mapping) else {}
    event[words.EXTENSION] = {**there, OURS: {**there.get(OURS, {}), **own}}


def _counted(turn: Mapping[str, Any]) -> bool:
    return turn.get("num_response_tokens") is not None


def _fill(graph: Drawn, episode: Episode, content: Content) -> None:
    """Put rows and references into the events that are turns' own."""
    for turn in episode.turns:
        index, event = turn["turn_index"], graph.own[turn["turn_index"]]
        is_tool = index in graph.results
        event[words.EXTENSION][OURS] = of_turn(episode, turn, content)
        column = "tool_request" if is_tool else "response_text"
        if ref := content_ref(episode, turn, content, column):
            for each in graph.outputs[index] if not is_tool else [event]:
                each["content_ref"] = ref
        if is_tool and (ref := content_ref(episode, turn, content, "tool_result")):
            graph.results[index]["content_ref"] = ref


def rewards_of(episode: Episode) -> dict[str, float]:
    """`team`, each role's mean, and each part's mean, as far as turns have some."""
    role_of = {turn["turn_index"]: turn.get("role") for turn in episode.turns}
    found: dict[str, list[float]] = {}
    for index, row in episode.rewards.items():
        if row.get("reward") is not None:
            found.setdefault("team", []).append(row["reward"])
            if role_of.get(index):
                found.setdefault(f"role:{role_of[index]}", []).append(row["reward"])
        for part in row.get("reward_parts") or ():
            if part["value"] is not None:
                found.setdefault(f"part:{part['name']}", []).append(part["value"])
    means = {name: mean(values) for name, values in found.items()}
    return {name: value for name, value in means.items() if value is not None}


def _costs(episode: Episode, events: list[dict[str, Any]]) -> dict[str, float]:
    costs: dict[str, float] = {
        "tokens": sum(turn_tokens(turn) for turn in episode.turns),
        "wall_clock_s": _not_negative(episode.row.get("seconds")),
        "tool_calls": sum(event["type"] == "tool_call" for event in events),
        "messages": len({message_id(event) for event in events if event["type"] == "message"}),
    }
    if episode.row.get("modelled_seconds") is not None:
        costs["critical_path_s"] = _not_negative(episode.row["modelled_seconds"])
    return costs


def _not_negative(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def _metrics(episode: Episode) -> dict[str, float]:
    values = (episode.evaluation or {}).get("values") or ()
    return {v["name"]: v["value"] for v in values if v["value"] is not None and math.isfinite(v["value"])}


def _topology(episode: Episode, source: Source) -> str:
    name = str(source.workflow.get("name", ""))
    if any(turn.get("instance") for turn in episode.turns):
        return "hierarchical"
    return "debate" if name == "debate" else "unknown"


@functools.cache  # reading it takes longer than writing a trace
def system_name() -> str:
    """`cadre/` and the version of this one."""
    return f"cadre/{version()}"
