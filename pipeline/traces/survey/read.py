"""A trace of the survey's schema as an episode: Cadre's own by its rows, others by their events."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.traces.extension import OURS, rows_from
from pipeline.traces.imported import Imported, own_episode, settle
from pipeline.traces.names import IMPORTED, identifier
from pipeline.traces.survey import words
from pipeline.traces.survey.write import HELD, KEPT
from rewards.scoring.table import NOT_AN_LLM_TURN
from workflows.vocabulary import Act, Event, Origin, Status, StopReason

_ACTS: Final[Mapping[str, Act]] = {
    "spawn": Act.SPAWN,
    "message": Act.MESSAGE,
    "return": Act.RETURN,
    "aggregate": Act.AGGREGATE,
}
UNNAMED: Final = "tool"  # a result without its call need not name one
_LLM: Final = frozenset(("orchestrator_decision", "message", "return", "aggregate"))


def read_survey(trace: Mapping[str, Any], temperature: float | None = None) -> Imported:
    """The episode of a trace that breaks no rule (`traces.survey.rules.problems_of`).

    Raises:
        ValueError: a row of Cadre's own does not fit its table.
    """
    whole = next((own for event in trace["events"] if "form" in (own := _own(event))), None)
    return settle(_foreign(trace) if whole is None else _of_cadre(trace, whole), temperature)


def _own(event: Mapping[str, Any]) -> Mapping[str, Any]:
    extension = event.get(words.EXTENSION)
    own = extension.get(OURS) if isinstance(extension, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def _of_cadre(trace: Mapping[str, Any], whole: Mapping[str, Any]) -> Imported:
    imported = own_episode(trace["trace_id"], whole, rows_from(whole), trace["task_id"])
    by_id = {event["id"]: event for event in trace["events"]}
    for event in trace["events"]:
        own = _own(event)
        if not isinstance(own.get("turn"), Mapping):
            continue
        rows = rows_from(own)
        turn, index = rows["turn"], rows["turn"].get("turn_index")
        if index is None:
            raise ValueError(f"event {event['id']!r}: turn.turn_index is missing")
        imported.turns.append(turn)
        imported.rewards |= {index: rows["reward"]} if "reward" in rows else {}
        imported.credit |= {index: rows["credit"]} if "credit" in rows else {}
        imported.note(index, **own.get("traced", {}))
        if turn.get("response_text") is None and turn.get("tool_request") is None and "content_ref" in event:
            imported.refs[index] = event["content_ref"]
        result = by_id.get(own.get("traced", {}).get("result", f"{event['id']}.result"), {})
        if turn.get("tool_result") is None:
            imported.note(index, result_ref=result.get("content_ref"))
    if whole.get("kept"):
        imported.note(None, **{KEPT: _skeleton(trace)})
    else:
        names = {k: trace[k] for k in HELD if k in trace}
        imported.note(None, trace={**imported.traced.get(None, {}).get("trace", {}), **names})
    imported.turns.sort(key=lambda turn: turn["turn_index"])
    return imported


def _skeleton(trace: Mapping[str, Any]) -> dict[str, Any]:
    """A trace as its program wrote it, without what Cadre added."""
    events = []
    for event in trace["events"]:
        bare = dict(event)
        extension = bare.get(words.EXTENSION)
        if isinstance(extension, Mapping) and OURS in extension:
            left = {k: v for k, v in extension.items() if k != OURS}
            bare[words.EXTENSION] = left
            if not left:
                del bare[words.EXTENSION]
        events.append(bare)
    top = {k: v for k, v in trace.items() if k not in ("events", "edges")}
    return {"top": top, "events": events, "edges": [dict(edge) for edge in trace["edges"]]}


def _foreign(trace: Mapping[str, Any]) -> Imported:
    events = in_order(trace["events"], trace["edges"])
    incoming: dict[str, list[str]] = {}
    for edge in trace["edges"]:
        incoming.setdefault(edge["dst"], []).append(edge["src"])
    call_of = _calls(events, incoming)
    imported = Imported(trace["trace_id"], trace["task_id"], [])
    index_of: dict[str, int] = {}  # of events, results of tools by that of their call
    last_of: dict[str, int] = {}  # the last turn of an agent
    for event in events:
        if event["id"] in call_of:  # a result: the second half of its call
            index = index_of[event["id"]] = index_of[call_of[event["id"]]]
            imported.turns[index]["ended_at"] = float(event["t"])
            imported.note(index, result=event["id"], result_ref=event.get("content_ref"))
            continue
        index = len(imported.turns)
        index_of[event["id"]] = index
        parents = sorted({index_of[s] for s in incoming.get(event["id"], ())})
        if not trace["edges"] and index:  # no edges at all: what an agent did before, else what came before
            parents = [last_of.get(event["agent"], index - 1)]
        last_of[event["agent"]] = index
        imported.turns.append(_turn(event, index, parents))
        imported.note(index, event=event["id"])
        if "content_ref" in event:
            imported.refs[index] = event["content_ref"]
    costs = trace["costs"]
    imported.episode = {
        "status": str(Status.OK),
        "stop_reason": str(StopReason.FINISHED),
        "started_at": 0.0,
        "seconds": float(costs["wall_clock_s"]),
        "modelled_seconds": costs.get("critical_path_s"),
    }
    imported.note(None, **{KEPT: _skeleton(trace)})
    earned = {name: float(value) for name, value in trace["rewards"].items()}
    if earned:
        parts = [{"name": name, "value": value} for name, value in earned.items()]
        reward = earned.get("team")
        reason = None if reward is not None else "the trace has no reward of the team"
        for turn in imported.turns:
            if turn["event"] == Event.LLM:
                row = {"reward": reward, "reward_parts": parts, "no_reward_reason": reason}
                imported.rewards[turn["turn_index"]] = row
            else:
                imported.rewards[turn["turn_index"]] = {"no_reward_reason": NOT_AN_LLM_TURN}
    return imported


def _turn(entry: Mapping[str, Any], index: int, parents: list[int]) -> dict[str, Any]:
    kind = entry["type"]
    is_tool = kind in ("tool_call", "tool_result")
    event_kind = Event.TOOL if is_tool else Event.LLM if kind in _LLM else Event.CONTROL
    role = entry.get("role") or entry["agent"].partition("#")[0]
    tool = entry.get("tool", UNNAMED)
    act = _ACTS.get(kind)
    recipients = [entry["to"]] if act is not None and entry.get("to") else None
    return {
        "turn_index": index,
        "step": identifier(tool if is_tool else role if kind in _LLM else kind),
        "round": 0,
        "branch": "",
        "parents": parents,
        "event": str(event_kind),
        "act": str(act) if act is not None else None,
        "role": identifier(role) if event_kind == Event.LLM else None,
        "model_id": IMPORTED if event_kind == Event.LLM else None,
        "base_id": IMPORTED if event_kind == Event.LLM else None,
        "status": str(Status.OK),
        "tool": tool if is_tool else None,
        "started_at": float(entry["t"]),
        "ended_at": float(entry["t"]),
        "origin": str(Origin.IMPORTED),
        "instance": entry["agent"] if not is_tool else None,
        "decided_by": parents[0] if kind == "spawn" and parents else None,
        "recipients": recipients,
        "policy_version": 0 if event_kind == Event.LLM else None,
        "trainable": event_kind == Event.LLM,
    }


def _calls(events: Sequence[Mapping[str, Any]], incoming: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The call of each result of a tool, by their ids; a call has one result."""
    kinds = {event["id"]: event["type"] for event in events}
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for event in events:
        if event["type"] != "tool_result":
            continue
        of = [s for s in incoming.get(event["id"], ()) if kinds[s] == "tool_call" and s not in answered]
        if of:
            calls[event["id"]] = of[0]
            answered.add(of[0])
    return calls


def in_order(
    events: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Events by time and place in the document, each after those that an edge leads from."""
    place = {event["id"]: n for n, event in enumerate(events)}
    followers: dict[str, list[str]] = {}
    waits = dict.fromkeys(place, 0)
    for edge in edges:
        followers.setdefault(edge["src"], []).append(edge["dst"])
        waits[edge["dst"]] += 1
    free = [(events[n]["t"], n) for name, n in place.items() if not waits[name]]
    heapq.heapify(free)
    ordered = []
    while free:
        _, n = heapq.heappop(free)
        ordered.append(events[n])
        for target in followers.get(events[n]["id"], ()):
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(free, (events[place[target]]["t"], place[target]))
    return ordered
