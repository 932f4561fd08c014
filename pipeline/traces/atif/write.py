"""An episode as one ATIF trajectory.

The trajectory's own steps are the team's course: the task as the user's, then each turn in order. What a
model was asked lies in trajectories inside, one for each chain of prompts that go on with each other, where
every step is a message of the chat: a program that knows ATIF alone finds chats, replies, ids, logprobs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pipeline.traces.episode import Episode, Row, agents_of
from pipeline.traces.extension import OURS, Source, content_ref, of_episode, of_turn
from pipeline.traces.rows import Content
from pipeline.traces.survey.write import rewards_of, system_name
from workflows.trajectory import to_json
from workflows.vocabulary import Event

VERSION: Final = "ATIF-v1.8"
CHATS: Final[Mapping[str, str]] = {"system": "system", "user": "user", "assistant": "agent"}
METRICS: Final[Mapping[str, str]] = {  # ATIF's names of columns, in a step's metrics
    "prompt_token_ids": "prompt_token_ids",
    "completion_token_ids": "response_token_ids",
    "logprobs": "behaviour_logprobs",
}
COUNTS: Final[Mapping[str, str]] = {
    "prompt_tokens": "num_prompt_tokens",
    "completion_tokens": "num_response_tokens",
    "cached_tokens": "num_cached_tokens",
}


def atif_trajectory(episode: Episode, source: Source, content: Content) -> dict[str, Any]:
    """The trajectory of an episode, with a trajectory inside for each chain of prompts."""
    return _Writer(episode, source, content).written()


class _Writer:
    def __init__(self, episode: Episode, source: Source, content: Content) -> None:
        self.episode, self.source, self.content = episode, source, content
        self.agents = agents_of(episode.turns)
        self.steps: list[dict[str, Any]] = []
        self.chains: list[_Chain] = []

    def written(self) -> dict[str, Any]:
        self._ask()
        for turn in self.episode.turns:
            if turn["event"] == Event.LLM:
                self._reply(turn)
            elif turn["event"] == Event.TOOL:
                self._call(turn)
            else:
                said = {"source": "system", "message": self._text(turn, "parsed")}
                self._step(said | {"extra": {OURS: of_turn(self.episode, turn, self.content)}}, turn)
        traced = self.episode.traced.get(None, {}).get("trace", {})
        own = of_episode(self.episode, self.source, self.content, ("trace_id", "session_id"))
        own["withheld"] = self.content != "inline"
        extra = {OURS: own, "task_id": str(self.episode.row["task_id"]), "rewards": rewards_of(self.episode)}
        trajectory = {
            "schema_version": VERSION,
            "session_id": self.source.run if not traced else traced.get("session_id"),
            "trajectory_id": traced.get("trace_id") or f"{self.source.run}/{self.episode.episode_id}",
            "agent": {"name": str(own.get("workflow", {}).get("name") or "team"), "version": system_name()},
            "steps": self.steps,
            "final_metrics": self._totals(),
            "extra": extra,
            "subagent_trajectories": [chain.trajectory() for chain in self.chains] or None,
        }
        return {k: v for k, v in trajectory.items() if v is not None}

    def _ask(self) -> None:
        task = self.episode.task or {}
        text = task.get("inputs") if self.content == "inline" else None
        self._step({"source": "user", "message": text or ""}, None)

    def _reply(self, turn: Row) -> None:
        index = turn["turn_index"]
        own = of_turn(self.episode, turn, self.content)
        said = own.pop("content", {})
        chain = self._chain(turn, said)
        step_id = chain.add(self, turn, said, own)
        reference = {"trajectory_id": chain.name, "extra": {"step_id": step_id, "turn_index": index}}
        results = [{"subagent_trajectory_ref": [reference]}]
        step = {"source": "agent", "message": "", "llm_call_count": 0, "observation": {"results": results}}
        self._step(step, turn)

    def _chain(self, turn: Row, said: dict[str, Any]) -> _Chain:
        """The chain that a reply's prompt goes on with, or a new one; the prompt is in it then."""
        messages = _chat(said.get("messages"))
        agent, model = self.agents[turn["turn_index"]], _model(turn)
        if messages is not None:
            del said["messages"]
            for chain in reversed(self.chains):
                known = len(chain.messages)
                same = chain.agent == agent and chain.model == model
                if same and known and chain.messages == messages[:known] and len(messages) > known:
                    chain.go_on(messages[known:])
                    return chain
        chain = _Chain(f"chain-{turn['turn_index']}", agent, model)
        chain.go_on(messages or [])
        self.chains.append(chain)
        return chain

    def _call(self, turn: Row) -> None:
        own = of_turn(self.episode, turn, self.content)
        said = own.get("content", {})
        name = f"call-{turn['turn_index']}"
        asked = _json(said.get("tool_request"))
        arguments = asked if isinstance(asked, dict) else {} if asked is None else {"request": asked}
        if isinstance(asked, dict) and asked and to_json(asked) == said["tool_request"]:
            del said["tool_request"]
        result: dict[str, Any] = {"source_call_id": name, "content": said.pop("tool_result", None)}
        extra: dict[str, Any] = {OURS: own}
        for key, column in (("request_ref", "tool_request"), ("result_ref", "tool_result")):
            if ref := content_ref(self.episode, turn, self.content, column):
                extra[key] = ref
        call = {"tool_call_id": name, "function_name": turn["tool"] or "tool", "arguments": arguments}
        step = {"source": "agent", "message": "", "llm_call_count": 0, "tool_calls": [call]}
        results = [{k: v for k, v in result.items() if v is not None}]
        self._step(step | {"observation": {"results": results}, "extra": extra}, turn)

    def _step(self, step: dict[str, Any], turn: Row | None) -> None:
        numbered: dict[str, Any] = {"step_id": len(self.steps) + 1}
        self.steps.append(numbered | self.timestamp(turn) | step)

    def timestamp(self, turn: Row | None) -> dict[str, str]:
        """When a turn ended, of the whole when it began; nothing where that is not known."""
        began = self.episode.row.get("started_at")
        after = 0.0 if turn is None else turn.get("ended_at")
        if not began or after is None or not math.isfinite(began + after):
            return {}
        at = datetime.fromtimestamp(0, UTC) + timedelta(seconds=began + after)
        return {"timestamp": at.isoformat().replace("+00:00", "Z")}

    def _text(self, turn: Row, column: str) -> str:
        return (turn.get(column) or "") if self.content == "inline" else ""

    def _totals(self) -> dict[str, Any]:
        own = [turn for turn in self.episode.turns if turn.get("origin") != "copied"]
        totals = {
            f"total_{name}": sum(turn.get(column) or 0 for turn in own) for name, column in COUNTS.items()
        }
        return {**totals, "total_steps": len(self.steps)}


class _Chain:
    """A chat that grows: prompts that go on with each other, of one agent and one model."""

    def __init__(self, name: str, agent: str, model: str | None) -> None:
        self.name, self.agent, self.model = name, agent, model
        self.messages: list[dict[str, str]] = []
        self.steps: list[dict[str, Any]] = []

    def go_on(self, messages: list[dict[str, str]]) -> None:
        """Add messages of a prompt. An assistant's here were said elsewhere."""
        for message in messages:
            source = CHATS.get(message["role"], "user")
            step: dict[str, Any] = {"source": source, "message": message["content"]}
            if source == "agent":
                step["is_copied_context"] = True
            if message["role"] not in CHATS:
                step["extra"] = {OURS: {"role": message["role"]}}
            self._append(step)
        self.messages += messages

    def add(self, writer: _Writer, turn: Row, said: dict[str, Any], own: dict[str, Any]) -> int:
        """Add a reply; the number of its step. What the step's own keys hold leaves `said`."""
        metrics: dict[str, Any] = {}
        for name, column in METRICS.items():
            values = said.get(column)
            if values is not None and all(isinstance(v, int | float) for v in values):
                metrics[name] = said.pop(column)
        ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
        if logprobs is not None and len(logprobs) != len(ids or ()):
            said["behaviour_logprobs"] = metrics.pop("logprobs")  # not one for each token: no metric of ATIF
        metrics |= {name: v for name, column in COUNTS.items() if (v := turn.get(column)) is not None}
        text = said.pop("response_text", None)
        if writer.content == "inline" and text is None:
            own["no_text"] = True
        if said:
            own["content"] = said
        extra: dict[str, Any] = {OURS: own}
        if ref := content_ref(writer.episode, turn, writer.content, "response_text"):
            extra["content_ref"] = ref
        step = {"source": "agent", "message": text or "", "llm_call_count": 1, "extra": extra}
        if self.model is not None:
            step["model_name"] = self.model
        if metrics:
            step["metrics"] = metrics
        self._append(writer.timestamp(turn) | step)
        self.messages.append({"role": "assistant", "content": text or ""})
        return len(self.steps)

    def trajectory(self) -> dict[str, Any]:
        agent = {"name": self.agent, "version": system_name()}
        if self.model is not None:
            agent["model_name"] = self.model
        return {
            "schema_version": VERSION,
            "trajectory_id": self.name,
            "agent": agent,
            "steps": self.steps,
        }

    def _append(self, step: dict[str, Any]) -> None:
        self.steps.append({"step_id": len(self.steps) + 1} | step)


def _model(turn: Row) -> str | None:
    if not turn.get("model_id"):
        return None
    version = turn.get("policy_version")
    return str(turn["model_id"]) if version is None else f"{turn['model_id']}@{version}"


def _chat(text: str | None) -> list[dict[str, str]] | None:
    """The messages of a prompt, where they are such that they read back to the same text."""
    messages = _json(text)
    if not isinstance(messages, list) or not messages:
        return None
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            return None
        if not all(isinstance(value, str) for value in message.values()):
            return None
    return messages if to_json(messages) == text else None


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
