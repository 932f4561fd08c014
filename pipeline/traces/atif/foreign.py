"""A trajectory of another program as an episode: a turn for each reply and each call of a tool.

Thoughts that a step has beside its message come before it, between `<think>` and `</think>`, as models write
them. A trajectory inside another is an agent of its own, begun by the step that refers to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pipeline.traces.atif.write import COUNTS, METRICS
from pipeline.traces.imported import Imported, Row, task_id_of
from pipeline.traces.names import identifier, model_name
from pipeline.traces.rows import reference, row_of
from rewards.scoring.table import NOT_AN_LLM_TURN
from workflows.trajectory import TURNS, clean_text, to_json
from workflows.vocabulary import Event, Origin, Status, StopReason

_KEPT_OF_STEP: Final = ("reasoning_effort", "extra", "tool_calls", "observation")
_KEPT_OF_ALL: Final = ("schema_version", "session_id", "agent", "notes", "final_metrics", "extra")


def foreign_atif(trajectory: Mapping[str, Any]) -> Imported:
    """The episode of a trajectory without Cadre's own extension."""
    return _Reading(trajectory).imported


class _Reading:
    def __init__(self, trajectory: Mapping[str, Any]) -> None:
        asked = _asked(trajectory["steps"])
        extra = trajectory.get("extra") or {}
        named = extra.get("task_id")
        task_id = str(named) if named else task_id_of(asked)
        name = trajectory.get("trajectory_id") or trajectory.get("session_id") or task_id
        self.imported = Imported(str(name), clean_text(task_id), [])
        self.imported.task = {"inputs": to_json({"question": asked})} if asked else {}
        self.began: float | None = None
        self.instances: dict[str, list[int]] = {}  # the last turn of each trajectory inside
        self._walk(trajectory, None, [])
        ends = [turn["ended_at"] for turn in self.imported.turns if turn["ended_at"] is not None]
        self.imported.episode = {
            "status": str(Status.OK),
            "stop_reason": str(StopReason.FINISHED),
            "started_at": self.began or 0.0,
            "seconds": max(ends, default=0.0),
        }
        self.imported.note(None, atif={k: trajectory[k] for k in _KEPT_OF_ALL if k in trajectory})
        self.imported.note(None, trace={"trace_id": name} if trajectory.get("trajectory_id") else None)
        self._reward(extra)

    def _walk(self, trajectory: Mapping[str, Any], instance: str | None, parents: list[int]) -> list[int]:
        """Read a trajectory; the turns that its last state came of."""
        agent = trajectory["agent"]
        role = identifier(agent["name"])
        inside = {each["trajectory_id"]: each for each in trajectory.get("subagent_trajectories") or ()}
        chat: list[dict[str, Any]] = []
        before = list(parents)  # what the next reply reads
        place = 0
        for step in trajectory["steps"]:
            text = _text(step["message"])
            if step["source"] != "agent":
                chat.append({"role": step["source"], "content": text})
                chat += _observed(step)
                continue
            if step.get("is_copied_context"):
                chat += [{"role": "assistant", "content": text}, *_observed(step)]
                continue
            if step.get("llm_call_count") != 0:
                model = model_name(step.get("model_name") or agent.get("model_name"))
                index = self._reply(step, text, chat, before, role, model)
                conversation = {"conversation": instance or role, "conversation_turn": place}
                self.imported.turns[index] |= {**conversation, "instance": instance}
                place, before = place + 1, [index]
            chat.append({"role": "assistant", "content": text or _calls_as_text(step)})
            after = [self._call(step, call, before, instance) for call in step.get("tool_calls") or ()]
            after += self._delegated(step, inside, before)
            chat += _observed(step)
            before = [*before, *after]
        for name, each in inside.items():  # to which no step refers
            if name not in self.instances:
                self.instances[name] = self._walk(each, name, before[:1])
        return before

    def _delegated(self, step: Mapping[str, Any], inside: Mapping[str, Any], parents: list[int]) -> list[int]:
        ends: list[int] = []
        for result in (step.get("observation") or {}).get("results", ()):
            for ref in result.get("subagent_trajectory_ref") or ():
                name = ref.get("trajectory_id")
                if name in inside and name not in self.instances:
                    self.instances[name] = self._walk(inside[name], name, parents)
                ends += self.instances.get(name, [])[-1:]
        return ends

    def _reply(
        self,
        step: Mapping[str, Any],
        text: str,
        chat: Sequence[Mapping[str, Any]],
        parents: list[int],
        role: str,
        model: str,
    ) -> int:
        thoughts = step.get("reasoning_content")
        said = f"<think>\n{thoughts}\n</think>\n\n{text}" if thoughts else text
        metrics = step.get("metrics") or {}
        known = {column: metrics.get(name) for name, column in {**METRICS, **COUNTS}.items()}
        index = self._turn(step, Event.LLM, role, parents)
        turn = self.imported.turns[index]
        messages = to_json(list(chat))
        turn |= row_of({k: v for k, v in known.items() if v is not None}, TURNS)
        turn |= {
            "role": role,
            "model_id": model,
            "base_id": model,
            "policy_version": 0,
            "messages": messages,
            "response_text": clean_text(said),
            "context_hash": reference(messages),
            "finish_reason": "stop",
        }
        ids = turn.get("response_token_ids")
        if turn.get("num_response_tokens") is None and ids is not None:
            turn["num_response_tokens"] = len(ids)
        kept = {k: step[k] for k in _KEPT_OF_STEP if step.get(k) is not None}
        self.imported.note(index, atif=kept or None)
        return index

    def _call(
        self, step: Mapping[str, Any], call: Mapping[str, Any], parents: list[int], instance: str | None
    ) -> int:
        index = self._turn(step, Event.TOOL, identifier(call["function_name"]), parents)
        results = (step.get("observation") or {}).get("results", ())
        of_call = [r.get("content") for r in results if r.get("source_call_id") == call["tool_call_id"]]
        said = [_text(content) for content in of_call if content is not None]
        self.imported.turns[index] |= {
            "tool": clean_text(call["function_name"]) or "tool",
            "tool_request": to_json(call["arguments"]),
            "tool_result": to_json("\n".join(said)) if said else None,
            "instance": instance,
        }
        return index

    def _turn(self, step: Mapping[str, Any], event: Event, name: str, parents: list[int]) -> int:
        index = len(self.imported.turns)
        at = self._at(step.get("timestamp"))
        turn: Row = {
            "turn_index": index,
            "step": name,
            "round": 0,
            "branch": "",
            "parents": sorted(set(parents)),
            "event": str(event),
            "status": str(Status.OK),
            "origin": str(Origin.IMPORTED),
            "trainable": event == Event.LLM,
            "started_at": at,
            "ended_at": at,
        }
        self.imported.turns.append(turn)
        return index

    def _at(self, timestamp: str | None) -> float | None:
        if timestamp is None:
            return None
        at = datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
        self.began = at if self.began is None else self.began
        return max(0.0, at - self.began)

    def _reward(self, extra: Mapping[str, Any]) -> None:
        """Rewards that a program put into `extra`: a number, or several by name; ATIF has no key for them."""
        given = extra.get("rewards", extra.get("reward"))
        given = given if isinstance(given, Mapping) else {"team": given}
        earned = {str(k): float(v) for k, v in given.items() if isinstance(v, int | float)}
        if not earned:
            return
        parts = [{"name": name, "value": value} for name, value in earned.items()]
        reason = None if "team" in earned else "the trace has no reward of the team"
        for turn in self.imported.turns:
            if turn["event"] == Event.LLM:
                row = {"reward": earned.get("team"), "reward_parts": parts, "no_reward_reason": reason}
                self.imported.rewards[turn["turn_index"]] = row
            else:
                self.imported.rewards[turn["turn_index"]] = {"no_reward_reason": NOT_AN_LLM_TURN}


def _asked(steps: Sequence[Mapping[str, Any]]) -> str:
    return next((_text(step["message"]) for step in steps if step["source"] == "user"), "")


def _observed(step: Mapping[str, Any]) -> list[dict[str, str]]:
    """What came back after a step, as messages of the chat."""
    results = (step.get("observation") or {}).get("results", ())
    said = [_text(r["content"]) for r in results if r.get("content") is not None]
    return [{"role": "tool", "content": text} for text in said]


def _calls_as_text(step: Mapping[str, Any]) -> str:
    """Calls of tools in a step that says nothing else, as JSON: what a later prompt shows of them."""
    calls = [
        {"name": call["function_name"], "arguments": call["arguments"]}
        for call in step.get("tool_calls") or ()
    ]
    return "\n".join(json.dumps(call, ensure_ascii=False, sort_keys=True) for call in calls)


def _text(message: str | Sequence[Mapping[str, Any]]) -> str:
    """A message's text; of its other parts, their kind and place."""
    if isinstance(message, str):
        return clean_text(message)
    parts = [
        part["text"] if part["type"] == "text" else f"[{part['type']}: {part['source']['path']}]"
        for part in message
    ]
    return clean_text("\n".join(parts))
