"""What a corpus of traces holds: events by type, agents, depth, width, edges, acts, and lost fields."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.traces.extension import OURS
from pipeline.traces.survey.events import depth_of
from pipeline.traces.survey.words import EXTENSION
from workflows.vocabulary import Event

# Columns of a turn of which people ask whether a corpus has them, and what for.
FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "messages": ("content", "prompts"),
    "response_text": ("content", "replies"),
    "response_token_ids": ("content", "token ids"),
    "behaviour_logprobs": ("content", "logprobs"),
    "policy_version": ("turn", "versions of weights"),
    "sampling": ("turn", "sampling parameters"),
    "num_response_tokens": ("turn", "token counts"),
    "ended_at": ("turn", "times"),
}


@dataclass(slots=True)
class Spread:
    """Smallest, mean and largest of numbers, without keeping them."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def as_dict(self) -> dict[str, float | None]:
        if not self.count:
            return {"min": None, "mean": None, "max": None}
        return {"min": self.least, "mean": self.total / self.count, "max": self.most}


@dataclass(slots=True)
class Stats:
    """Counts over traces of the survey's schema."""

    traces: int = 0
    events: Counter[str] = field(default_factory=Counter)  # by type
    edges: Counter[str] = field(default_factory=Counter)  # by type
    acts: Counter[str] = field(default_factory=Counter)  # of rows of Cadre's own
    topologies: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)
    agents: Spread = field(default_factory=Spread)  # of a trace
    size: Spread = field(default_factory=Spread)  # events of a trace
    depth: Spread = field(default_factory=Spread)  # events on the longest path
    width: Spread = field(default_factory=Spread)  # most agents that were spawned and not yet gone
    seconds: Spread = field(default_factory=Spread)
    tokens: Spread = field(default_factory=Spread)
    reward: Spread = field(default_factory=Spread)
    turns: int = 0  # rows of Cadre's own
    replies: int = 0
    have: Counter[str] = field(default_factory=Counter)  # replies that have a field of FIELDS
    refs: int = 0  # events with a reference to content

    def add(self, trace: Mapping[str, Any]) -> None:
        """Count one trace that breaks no rule."""
        events, edges = trace["events"], trace["edges"]
        self.traces += 1
        self.tasks.add(trace["task_id"])
        self.topologies[trace.get("topology", "unknown")] += 1
        self.events.update(event["type"] for event in events)
        self.edges.update(edge["type"] for edge in edges)
        self.size.add(len(events))
        acting = {e["agent"] for e in events if e["type"] != "tool_result" and e["id"] != "start"}
        self.agents.add(len(acting))
        self.depth.add(depth_of(edges))
        self.width.add(width_of(events))
        self.seconds.add(trace["costs"]["wall_clock_s"])
        self.tokens.add(trace["costs"]["tokens"])
        if "team" in trace["rewards"]:
            self.reward.add(trace["rewards"]["team"])
        for event in events:
            self.refs += "content_ref" in event
            own = _own(event)
            turn = own.get("turn")
            if isinstance(turn, Mapping):
                self._turn(turn, own.get("content", {}))

    def _turn(self, turn: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        self.turns += 1
        if turn.get("act"):
            self.acts[str(turn["act"])] += 1
        if turn.get("event") == Event.LLM:
            self.replies += 1
            places = {"turn": turn, "content": content}
            self.have.update(name for name, (place, _) in FIELDS.items() if name in places[place])

    def as_dict(self) -> dict[str, Any]:
        total = sum(self.events.values())
        return {
            "traces": self.traces,
            "tasks": len(self.tasks),
            "events": total,
            "events_by_type": dict(self.events.most_common()),
            "edges": sum(self.edges.values()),
            "edges_by_type": dict(self.edges.most_common()),
            "acts": dict(self.acts.most_common()),
            "act_share": {name: n / self.turns for name, n in self.acts.most_common()},
            "topologies": dict(self.topologies.most_common()),
            **{
                name: getattr(self, name).as_dict()
                for name in ("size", "agents", "depth", "width", "seconds", "tokens", "reward")
            },
            "turns": self.turns,
            "replies": self.replies,
            "replies_with": {name: self.have[name] for name in FIELDS},
            "events_with_reference": self.refs,
        }

    @property
    def lost(self) -> list[str]:
        """What replies lack, in words: with how many of them."""
        lacking = [(what, self.replies - self.have[name]) for name, (_, what) in FIELDS.items()]
        return [
            f"{what}: {count:,} of {self.replies:,} replies have none" for what, count in lacking if count
        ]


def width_of(events: Sequence[Mapping[str, Any]]) -> int:
    """The most agents that are there at one time: spawned and not yet despawned; 1 where none is spawned."""
    moments: list[tuple[float, int]] = []
    for event in events:
        if event["type"] in ("spawn", "despawn"):
            moments.append((event["t"], 1 if event["type"] == "spawn" else -1))
    now = most = 0
    for _, change in sorted(moments):  # at one moment who goes makes room for who comes
        now += change
        most = max(most, now)
    return max(1, most)


def stats_of(traces: Iterable[Mapping[str, Any]]) -> Stats:
    """The counts of traces of the survey's schema."""
    stats = Stats()
    for trace in traces:
        stats.add(trace)
    return stats


def _own(event: Mapping[str, Any]) -> Mapping[str, Any]:
    extension = event.get(EXTENSION)
    own = extension.get(OURS) if isinstance(extension, Mapping) else None
    return own if isinstance(own, Mapping) else {}
