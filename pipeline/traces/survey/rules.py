"""Strict validation of one trace of the survey's schema: every rule of `traces.survey.words.RULES`.

The schema alone lets pass duplicate ids, edges to nowhere, circles and times that run backwards; the script
of its authors lets pass unknown keys and wrong kinds of values. Neither looks at NaN. Here all are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.traces.extension import OURS
from pipeline.traces.problem import Problem, is_finite, is_number, kind_name, shown
from pipeline.traces.survey import words

_SLACK: Final = 1e-6  # relative, of sums of floats


def problems_of(trace: Any) -> list[Problem]:
    """Every rule that a trace breaks, in the order of the document; none for a trace that is as it should be.

    Where the kinds of values are wrong, what depends on them (times, circles, sums) is not looked at.
    """
    if not isinstance(trace, Mapping):
        return [Problem("object", "", f"a trace is an object, got {kind_name(trace)}")]
    found = [*_top(trace)]
    events, edges = trace.get("events"), trace.get("edges")
    if isinstance(events, list):
        found += [p for k, event in enumerate(events) for p in _event(event, f"events[{k}]")]
    if isinstance(edges, list):
        found += [p for k, edge in enumerate(edges) for p in _edge(edge, f"edges[{k}]")]
    if found or not (isinstance(events, list) and isinstance(edges, list)):
        return found
    known = {event["id"]: event for event in events}
    found = [*_references(events, edges, known)]
    if found:
        return found
    return [*_order(events, edges, known), *_tools(events, edges, known), *_lives(events), *_sums(trace)]


def _top(trace: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _required(trace, words.TOP_REQUIRED, "")
    for key in trace:
        if key not in words.TOP_KEYS:
            yield Problem("unknown-key", str(key), "the schema has no such key at the top")
    for key in ("trace_id", "task_id"):
        yield from _text(trace, key, "", filled=True)
    yield from _text(trace, "system", "")
    if "topology" in trace and trace["topology"] not in words.TOPOLOGIES:
        yield Problem("enum", "topology", _not_one_of(trace["topology"], words.TOPOLOGIES))
    for key in ("events", "edges"):
        if key in trace and not isinstance(trace[key], list):
            yield Problem("type", key, f"expected an array, got {kind_name(trace[key])}")
    if trace.get("events") == []:
        yield Problem("empty", "events", "a trace has at least one event")
    for key in ("rewards", "costs", "metrics"):
        if key in trace:
            yield from _numbers(trace[key], key)
    costs = trace.get("costs")
    if isinstance(costs, Mapping):
        yield from _required(costs, words.COSTS_REQUIRED, "costs.")
        for name, value in costs.items():
            if is_number(value) and value < 0:
                yield Problem("negative-cost", f"costs.{name}", f"expected 0 or more, got {shown(value)}")


def _event(event: Any, where: str) -> Iterator[Problem]:
    if not isinstance(event, Mapping):
        yield Problem("object", where, f"an event is an object, got {kind_name(event)}")
        return
    yield from _required(event, words.EVENT_REQUIRED, f"{where}.")
    for key in ("id", "agent"):
        yield from _text(event, key, f"{where}.", filled=True)
    for key in words.EVENT_TEXTS:
        if key in event:
            yield from _text(event, key, f"{where}.")
    if "trusted" in event and not isinstance(event["trusted"], bool):
        yield Problem("type", f"{where}.trusted", f"expected a boolean, got {kind_name(event['trusted'])}")
    if "t" in event:
        yield from _time(event["t"], f"{where}.t")
    if "type" in event:
        yield from _word(event["type"], words.EVENT_TYPES, f"{where}.type")


def _edge(edge: Any, where: str) -> Iterator[Problem]:
    if not isinstance(edge, Mapping):
        yield Problem("object", where, f"an edge is an object, got {kind_name(edge)}")
        return
    yield from _required(edge, words.EDGE_KEYS, f"{where}.")
    for key in edge:
        if key not in words.EDGE_KEYS:
            yield Problem("unknown-key", f"{where}.{key}", "the schema has no such key in an edge")
    for key in ("src", "dst"):
        yield from _text(edge, key, f"{where}.", filled=True)
    if "type" in edge:
        yield from _word(edge["type"], words.EDGE_TYPES, f"{where}.type")


def _references(
    events: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> Iterator[Problem]:
    if len(known) < len(events):
        seen: set[str] = set()
        for k, event in enumerate(events):
            if event["id"] in seen:
                yield Problem(
                    "duplicate-id", f"events[{k}].id", f"{shown(event['id'])} is another event's id"
                )
            seen.add(event["id"])
    for k, edge in enumerate(edges):
        for key in ("src", "dst"):
            if edge[key] not in known:
                yield Problem("dangling-edge", f"edges[{k}].{key}", f"no event has the id {shown(edge[key])}")


def _order(
    events: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> Iterator[Problem]:
    followers: dict[str, list[str]] = {}
    waits = dict.fromkeys(known, 0)
    for k, edge in enumerate(edges):
        source, target = edge["src"], edge["dst"]
        followers.setdefault(source, []).append(target)
        waits[target] += 1
        if known[source]["t"] > known[target]["t"]:
            yield Problem(
                "time-order",
                f"edges[{k}]",
                f"it leads from {shown(source)} at t = {known[source]['t']:g} back to {shown(target)} at "
                f"t = {known[target]['t']:g}",
            )
    free = [name for name, count in waits.items() if not count]
    for name in free:  # grows as it is gone through
        for target in followers.get(name, ()):
            waits[target] -= 1
            if not waits[target]:
                free.append(target)
    if len(free) < len(events):
        left = next(event["id"] for event in events if waits[event["id"]])
        yield Problem("cycle", "edges", f"they lead from {shown(left)} back to it, or to what it waits for")


def _tools(
    events: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> Iterator[Problem]:
    calls: dict[str, set[str]] = {}
    for edge in edges:
        if known[edge["dst"]]["type"] == "tool_result" and known[edge["src"]]["type"] == "tool_call":
            calls.setdefault(edge["dst"], set()).add(edge["src"])
    for k, entry in enumerate(events):
        kind, where, tool = entry["type"], f"events[{k}]", entry.get("tool")
        if kind == "tool_call" and not tool:
            yield Problem("tool", f"{where}.tool", "a tool_call names its tool; there is none")
        elif kind in ("message", "return"):
            for key in ("from", "to"):
                if not entry.get(key):
                    yield Problem("from-to", f"{where}.{key}", f"a {kind} says {key} whom; it is missing")
        elif kind == "tool_result" and (count := len(calls.get(entry["id"], ()))) != 1:
            yield Problem(
                "tool-parent", where, f"a tool_result follows one tool_call by an edge; it follows {count}"
            )


def _lives(events: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """That agents which were spawned act after that, and not after they were despawned."""
    born: dict[str, float] = {}
    gone: dict[str, float] = {}
    for event in events:
        if event["type"] == "spawn" and event.get("to"):
            born[event["to"]] = min(event["t"], born.get(event["to"], math.inf))
        elif event["type"] == "despawn" and event.get("to"):
            gone[event["to"]] = max(event["t"], gone.get(event["to"], -math.inf))
    if not born and not gone:
        return
    for k, event in enumerate(events):
        agent, t = event["agent"], event["t"]
        if t < born.get(agent, -math.inf):
            yield Problem(
                "spawn-order",
                f"events[{k}]",
                f"{shown(agent)} acts at t = {t:g} and is spawned at t = {born[agent]:g}",
            )
        if t > gone.get(agent, math.inf):
            yield Problem(
                "despawn-order",
                f"events[{k}]",
                f"{shown(agent)} acts at t = {t:g} and is despawned at t = {gone[agent]:g}",
            )


def _sums(trace: Mapping[str, Any]) -> Iterator[Problem]:
    costs, events = trace["costs"], trace["events"]
    sums: dict[str, float] = {
        "tool_calls": sum(event["type"] == "tool_call" for event in events),
        "messages": len({message_id(event) for event in events if event["type"] == "message"}),
    }
    turns = [turn for event in events if (turn := _turn_of(event)) is not None]
    if any("num_response_tokens" in turn for turn in turns):  # written by Cadre, and it knew what turns took
        sums["tokens"] = sum(turn_tokens(turn) for turn in turns)
    for name, total in sums.items():
        if name in costs and not math.isclose(costs[name], total, rel_tol=_SLACK, abs_tol=_SLACK):
            yield Problem(
                "cost-sum", f"costs.{name}", f"it says {costs[name]:g}, its events sum to {total:g}"
            )
    rewards = [value for event in events if (value := _reward_of(event)) is not None]
    if rewards and "team" in trace["rewards"]:
        mean, said = math.fsum(rewards) / len(rewards), trace["rewards"]["team"]
        if not math.isclose(said, mean, rel_tol=_SLACK, abs_tol=_SLACK):
            yield Problem("team-reward", "rewards.team", f"it says {said:g}, its turns' mean is {mean:g}")


def message_id(event: Mapping[str, Any]) -> str:
    """What copies of a message to several recipients share; of any other, its own id."""
    extension = event.get(words.EXTENSION)
    shared = extension.get("msg_id") if isinstance(extension, Mapping) else None
    return shared if isinstance(shared, str) else str(event["id"])


def turn_tokens(turn: Mapping[str, Any]) -> int:
    """Tokens that were read and sampled for a turn: none for one that is a copy of another episode's."""
    if turn.get("origin") == "copied":
        return 0
    counts = (turn.get(name) for name in ("num_prompt_tokens", "num_response_tokens"))
    return sum(int(count) for count in counts if count is not None and is_finite(count))


def _turn_of(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return _ours(event, "turn")


def _reward_of(event: Mapping[str, Any]) -> float | None:
    reward = (_ours(event, "earned") or {}).get("reward")
    return reward if is_finite(reward) else None


def _ours(event: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """What Cadre's own exporter says of an event."""
    value: Any = event
    for name in (words.EXTENSION, OURS, key):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _required(values: Mapping[str, Any], keys: Sequence[str], prefix: str) -> Iterator[Problem]:
    for key in keys:
        if key not in values:
            yield Problem("required", f"{prefix}{key}", "it is missing")


def _text(values: Mapping[str, Any], key: str, prefix: str, *, filled: bool = False) -> Iterator[Problem]:
    if key not in values:
        return
    if not isinstance(values[key], str):
        yield Problem("type", f"{prefix}{key}", f"expected a string, got {kind_name(values[key])}")
    elif filled and not values[key]:
        yield Problem("empty", f"{prefix}{key}", "expected a string that is not empty")


def _time(value: Any, where: str) -> Iterator[Problem]:
    if not is_number(value):
        yield Problem("type", where, f"expected a number, got {kind_name(value)}")
    elif not math.isfinite(value):
        yield Problem("not-finite", where, f"expected a finite number, got {value}")
    elif value < 0:
        yield Problem("minimum", where, f"expected 0 or more, got {value:g}")


def _numbers(values: Any, where: str) -> Iterator[Problem]:
    if not isinstance(values, Mapping):
        yield Problem("object", where, f"expected an object of numbers, got {kind_name(values)}")
        return
    for name, value in values.items():
        if not is_number(value):
            yield Problem("type", f"{where}.{name}", f"expected a number, got {kind_name(value)}")
        elif not math.isfinite(value):
            yield Problem("not-finite", f"{where}.{name}", f"expected a finite number, got {value}")


def _word(value: Any, known: frozenset[str], where: str) -> Iterator[Problem]:
    if not isinstance(value, str) or value not in known:
        yield Problem("enum", where, _not_one_of(value, sorted(known)))


def _not_one_of(value: Any, known: Sequence[str]) -> str:
    return f"got {shown(value)}, expected one of {', '.join(known)}"
