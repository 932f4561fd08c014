"""An episode as OpenTelemetry spans, by the semantic conventions for generative AI.

One document is one request of OTLP in JSON, as the file exporter of a collector writes it and as collectors
read it. The episode is the root span, each agent one below it, each call of a model or a tool one below its
agent; what a turn read is a link. Conventions: semconv 1.38, `gen_ai.*`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from pipeline.traces.episode import Episode, Row, agents_of, sources_of
from pipeline.traces.extension import Source
from pipeline.traces.rows import Content
from pipeline.traces.survey.write import rewards_of, system_name
from workflows.vocabulary import Event, Status

LOST: Final = (
    "token ids and log-probabilities, of options too",
    "credit: returns, advantages, channels, and why a turn is not trained on",
    "parsed values, what was cut from prompts, metrics of turns, details of acts",
    "the task's inputs and gold answer",
    "spans are only written: nothing is read back from them",
)
"""What of an episode no span holds."""

_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2
_SAMPLING: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
    "seed": "gen_ai.request.seed",
}


def otel_request(episode: Episode, source: Source, content: Content) -> dict[str, Any]:
    """The spans of an episode as one request of OTLP."""
    spans = _Spans(episode, source, content).made()
    resource = {
        "attributes": [_attribute("service.name", "cadre"), _attribute("service.version", _version())]
    }
    scope = {"name": "cadre.traces", "version": _version()}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


class _Spans:
    def __init__(self, episode: Episode, source: Source, content: Content) -> None:
        self.episode, self.source, self.content = episode, source, content
        self.agents = agents_of(episode.turns)
        self.began = float(episode.row.get("started_at") or 0.0)
        self.trace = f"{source.run}/{episode.episode_id}"
        self.trace_id = _hash(16, self.trace)
        self.times = _times(episode)

    def made(self) -> list[dict[str, Any]]:
        row = self.episode.row
        name = str(self.source.workflow.get("name") or "team")
        end = max([float(row.get("seconds") or 0.0), *(end for _, end in self.times.values())])
        root = self._span("episode", None, f"invoke_agent {name}", (0.0, end))
        root["attributes"] = _attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": name,
                "gen_ai.conversation.id": self.trace,
                "cadre.task_id": row["task_id"],
                "cadre.status": row["status"],
                "cadre.stop_reason": row.get("stop_reason"),
            }
        )
        root["status"] = _status(row["status"], row.get("error") if self.content == "inline" else None)
        root["events"] = [self._score(n, v, end) for n, v in rewards_of(self.episode).items()]
        spans = [root]
        for agent in dict.fromkeys(self.agents.values()):
            own = [self.times[index] for index, of in self.agents.items() if of == agent]
            span = self._span(
                f"agent {agent}",
                "episode",
                f"invoke_agent {agent}",
                (min(begin for begin, _ in own), max(end for _, end in own)),
            )
            span["attributes"] = _attributes(
                {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
            )
            spans.append(span)
        return [*spans, *map(self._turn, self.episode.turns)]

    def _turn(self, turn: Row) -> dict[str, Any]:
        index = turn["turn_index"]
        agent = self.agents[index]
        if turn["event"] == Event.TOOL:
            name, kind, said = f"execute_tool {turn.get('tool')}", _INTERNAL, self._tool(turn)
        elif turn["event"] == Event.LLM:
            name, kind, said = f"chat {turn.get('model_id')}", _CLIENT, self._chat(turn)
        else:
            name, kind, said = str(turn.get("act") or turn.get("step")), _INTERNAL, {}
        span = self._span(f"turn {index}", f"agent {agent}", name, self.times[index], kind)
        common = {
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": self.trace,
            "cadre.turn_index": index,
            "cadre.step": turn.get("step"),
            "cadre.act": turn.get("act"),
        }
        span["attributes"] = _attributes({**said, **common})
        span["links"] = [
            {"traceId": self.trace_id, "spanId": self._id(f"turn {source}"), "attributes": []}
            for source in sources_of(turn)
            if source in self.agents
        ]
        detail = turn.get("status_detail") if self.content == "inline" else None
        span["status"] = _status(turn["status"], detail)
        reward = self.episode.rewards.get(index, {}).get("reward")
        if reward is not None and math.isfinite(reward):
            span["events"] = [self._score("reward", reward, self.times[index][1])]
        return span

    def _chat(self, turn: Row) -> dict[str, Any]:
        version = turn.get("policy_version")
        model = turn.get("model_id")
        sampling = _json(turn.get("sampling")) or {}
        said: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "cadre",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model if version is None else f"{model}@{version}",
            "gen_ai.usage.input_tokens": turn.get("num_prompt_tokens"),
            "gen_ai.usage.output_tokens": turn.get("num_response_tokens"),
            "gen_ai.usage.cache_read.input_tokens": turn.get("num_cached_tokens"),
            "gen_ai.response.finish_reasons": [turn["finish_reason"]] if turn.get("finish_reason") else None,
            **{name: sampling.get(key) for key, name in _SAMPLING.items()},
        }
        if self.content != "inline":
            return said
        messages = _json(turn.get("messages")) or []
        parts = [_message(m.get("role"), m.get("content")) for m in messages if isinstance(m, dict)]
        said["gen_ai.input.messages"] = json.dumps(parts, ensure_ascii=False) if parts else None
        if turn.get("response_text") is not None:
            reply = _message("assistant", turn["response_text"]) | {
                "finish_reason": turn.get("finish_reason")
            }
            said["gen_ai.output.messages"] = json.dumps([reply], ensure_ascii=False)
        return said

    def _tool(self, turn: Row) -> dict[str, Any]:
        said: dict[str, Any] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": turn.get("tool")}
        said["gen_ai.tool.call.id"] = f"t{turn['turn_index']}"
        if self.content == "inline":
            said["gen_ai.tool.call.arguments"] = turn.get("tool_request")
            said["gen_ai.tool.call.result"] = turn.get("tool_result")
        return said

    def _score(self, name: str, value: float, at: float) -> dict[str, Any]:
        attributes = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}
        return {
            "name": "gen_ai.evaluation.result",
            "timeUnixNano": self._nano(at),
            "attributes": _attributes(attributes),
        }

    def _span(
        self, key: str, parent: str | None, name: str, times: tuple[float, float], kind: int = _INTERNAL
    ) -> dict[str, Any]:
        span: dict[str, Any] = {"traceId": self.trace_id, "spanId": self._id(key), "name": name, "kind": kind}
        if parent is not None:
            span["parentSpanId"] = self._id(parent)
        begin, end = times
        return span | {"startTimeUnixNano": self._nano(begin), "endTimeUnixNano": self._nano(end)}

    def _id(self, key: str) -> str:
        return _hash(8, self.trace, key)

    def _nano(self, seconds: float) -> str:
        return str(round((self.began + seconds) * 1e9))


def _times(episode: Episode) -> dict[int, tuple[float, float]]:
    """When each turn began and ended; what is not known is when the turn before it ended."""
    times: dict[int, tuple[float, float]] = {}
    last = 0.0
    for turn in episode.turns:
        begin = next((turn[c] for c in ("started_at", "queued_at") if turn.get(c) is not None), last)
        end = turn["ended_at"] if turn.get("ended_at") is not None else begin
        last = max(begin, end)
        times[turn["turn_index"]] = (begin, last)
    return times


def _message(role: Any, content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": str(role), "parts": [{"type": "text", "content": text}]}


def _status(status: str, detail: str | None) -> dict[str, Any]:
    if status == Status.OK:
        return {"code": _OK}
    return {"code": _ERROR, "message": f"{status}: {detail}" if detail else str(status)}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_attribute(name, value) for name, value in values.items() if value is not None]


def _attribute(name: str, value: Any) -> dict[str, Any]:
    return {"key": name, "value": _any_value(value)}


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits are text in the JSON of protocol buffers
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    return {"stringValue": str(value)}


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def _hash(size: int, *parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=size).hexdigest()


def _version() -> str:
    return system_name().partition("/")[2]
