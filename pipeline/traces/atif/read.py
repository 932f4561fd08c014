"""An ATIF trajectory as an episode: Cadre's own by its rows, others by their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.traces.atif.foreign import foreign_atif
from pipeline.traces.atif.write import CHATS, METRICS
from pipeline.traces.extension import OURS, rows_from
from pipeline.traces.imported import Imported, own_episode, settle
from workflows.trajectory import to_json

_ROLES: Final = {source: role for role, source in CHATS.items()}


def read_atif(trajectory: Mapping[str, Any], temperature: float | None = None) -> Imported:
    """The episode of a trajectory that breaks no rule (`traces.atif.rules.problems_of`).

    Raises:
        ValueError: a row of Cadre's own does not fit its table.
    """
    whole = own_of(trajectory)
    imported = _of_cadre(trajectory, whole) if "form" in whole else foreign_atif(trajectory)
    return settle(imported, temperature)


def own_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Cadre added to a trajectory or a step."""
    extra = value.get("extra")
    own = extra.get(OURS) if isinstance(extra, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def _of_cadre(trajectory: Mapping[str, Any], whole: Mapping[str, Any]) -> Imported:
    imported = own_episode(str(trajectory.get("trajectory_id")), whole, rows_from(whole))
    names = {"trace_id": trajectory.get("trajectory_id"), "session_id": trajectory.get("session_id")}
    kept = {k: v for k, v in names.items() if v is not None}
    imported.note(None, trace={**imported.traced.get(None, {}).get("trace", {}), **kept})
    withheld = bool(whole.get("withheld"))
    for step in trajectory["steps"]:
        _call(imported, step)
    for chain in trajectory.get("subagent_trajectories") or ():
        _chain(imported, chain["steps"], withheld)
    imported.turns.sort(key=lambda turn: turn["turn_index"])
    return imported


def _call(imported: Imported, step: Mapping[str, Any]) -> None:
    """A step of the team's course that has a row: a tool's, or what the workflow computed."""
    own = own_of(step)
    if not isinstance(own.get("turn"), Mapping):
        return
    turn = _add(imported, own)
    calls, observation = step.get("tool_calls") or (), step.get("observation") or {}
    content = own.get("content", {})
    if calls and calls[0]["arguments"] and "tool_request" not in content:
        turn["tool_request"] = to_json(calls[0]["arguments"])
    for result in observation.get("results", ()):
        if isinstance(result.get("content"), str):
            turn["tool_result"] = result["content"]
    extra = step.get("extra", {})
    if turn.get("tool_request") is None and "request_ref" in extra:
        imported.refs[turn["turn_index"]] = extra["request_ref"]
    if turn.get("tool_result") is None:
        imported.note(turn["turn_index"], result_ref=extra.get("result_ref"))


def _chain(imported: Imported, steps: Sequence[Mapping[str, Any]], withheld: bool) -> None:
    """The replies of a chat, each with all that stands before it as its prompt."""
    messages: list[dict[str, Any]] = []
    for step in steps:
        own, source, text = own_of(step), step["source"], step["message"]
        if isinstance(own.get("turn"), Mapping):
            turn = _add(imported, own)
            _say(turn, step, own, messages, withheld)
            ref = step.get("extra", {}).get("content_ref")
            if turn.get("response_text") is None and ref is not None:
                imported.refs[turn["turn_index"]] = ref
        messages.append({"role": own.get("role", _ROLES[source]), "content": text})


def _say(
    turn: dict[str, Any],
    step: Mapping[str, Any],
    own: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    withheld: bool,
) -> None:
    metrics = step.get("metrics", {})
    turn |= {column: metrics[name] for name, column in METRICS.items() if name in metrics}
    if withheld:
        return
    if not own.get("no_text"):
        turn["response_text"] = step["message"]
    if turn.get("messages") is None and messages:
        turn["messages"] = to_json(messages)


def _add(imported: Imported, own: Mapping[str, Any]) -> dict[str, Any]:
    rows = rows_from(own)
    turn, index = rows["turn"], rows["turn"].get("turn_index")
    if index is None:
        raise ValueError("turn.turn_index is missing")
    imported.turns.append(turn)
    imported.rewards |= {index: rows["reward"]} if "reward" in rows else {}
    imported.credit |= {index: rows["credit"]} if "credit" in rows else {}
    imported.note(index, **own.get("traced", {}))
    return turn
