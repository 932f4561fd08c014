"""The words of the survey's schema: keys, kinds of events and edges, forms of a team."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EVENT_TYPES: Final = frozenset(
    (
        *("orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return"),
        *("aggregate", "human_intervention", "safety_event"),
    )
)
EDGE_TYPES: Final = frozenset(
    (
        *("temporal", "causal", "spawn", "message", "tool_dependency", "return", "aggregate"),
        "safety_flow",
    )
)
TOPOLOGIES: Final = (
    *("centralized", "planner_executor_critic", "debate", "swarm", "hierarchical", "harness", "mixed"),
    "unknown",
)
TOP_REQUIRED: Final = ("trace_id", "task_id", "events", "edges", "rewards", "costs")
TOP_KEYS: Final = frozenset((*TOP_REQUIRED, "system", "topology", "metrics"))
EVENT_REQUIRED: Final = ("id", "t", "type", "agent")
EVENT_TEXTS: Final = ("role", "from", "to", "tool", "content_ref")  # optional, each a string
EVENT_KEYS: Final = frozenset((*EVENT_REQUIRED, *EVENT_TEXTS, "trusted"))  # others are allowed
EDGE_KEYS: Final = ("src", "dst", "type")
COSTS_REQUIRED: Final = ("tokens", "wall_clock_s")
EXTENSION: Final = "x_mas"  # the key of an event that holds what the schema has no key for

RULES: Final[Mapping[str, str]] = {
    "object": "a trace is a JSON object, and so are its events, edges, rewards, costs and metrics",
    "required": "a key that the schema requires is there",
    "unknown-key": "a trace and an edge have no other keys than those of the schema; an event may",
    "type": "a value is of the kind that the schema says; true and false are no numbers",
    "empty": "ids, agents and the list of events are not empty",
    "enum": "types of events and edges, and the topology, are words of the schema",
    "minimum": "times are 0 or more",
    "not-finite": "numbers are finite",
    "negative-cost": "costs are 0 or more",
    "duplicate-id": "an event's id is its own",
    "dangling-edge": "both ends of an edge are events",
    "cycle": "edges lead in no circle, and no edge to its own event",
    "time-order": "no edge leads back in time",
    "tool": "a tool call names its tool",
    "from-to": "a message and a return say from whom and to whom",
    "tool-parent": "a tool result follows exactly one tool call by an edge",
    "spawn-order": "an agent acts after it was spawned",
    "despawn-order": "an agent does not act after it was despawned",
    "cost-sum": "totals of tool calls, messages and, where turns have them, tokens are those of the events",
    "team-reward": "the reward `team` is the mean reward of the turns, where they have one",
    "json": "a line is one JSON value",
    "duplicate-trace": "a trace's id is its own among all traces",
}
"""Every rule of a strict validation by its name, with what it says. Those from `object` to `minimum` are the
schema's, the next four are checked by its authors' script, the others are ours."""
