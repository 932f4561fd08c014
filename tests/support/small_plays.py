"""Small workflows of one role, and how tests play them and look at what was played."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflows.engine import Message, Sampling
from workflows.graph import ControlStep, Edge, LlmStep, Step, Tool, Workflow
from workflows.parsers import Tag
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.state import State
from workflows.testing import Reply, play_once

SAYER = Role("sayer", "{text}", Tag("a"))


def visits(played: Played) -> list[tuple[str, int, str]]:
    return [(t["step"], t["round"], t["branch"]) for t in played.turns]


def named(played: Played, step: str) -> list[dict[str, Any]]:
    return [t for t in played.turns if t["step"] == step]


def say(name: str, text: Any = "task.question", **options: Any) -> LlmStep:
    return LlmStep(name, "sayer", {"text": text}, **options)


def note(name: str, compute: Callable[[State], Any] = lambda s: None, **options: Any) -> ControlStep:
    return ControlStep(name, compute, **options)


def workflow(
    steps: Sequence[Step], edges: Sequence[Edge] = (), tools: Mapping[str, Tool] | None = None
) -> Workflow:
    return Workflow(
        "w", [SAYER] if any(isinstance(s, LlmStep) for s in steps) else [], steps, edges, tools=tools
    )


def seeded(messages: Sequence[Message], sampling: Sampling) -> str:
    """Well-formed four times in five, and different for each seed."""
    luck = random.Random(sampling.seed)
    return f"<a>{luck.randrange(100)}</a>" if luck.random() < 0.8 else "no tag"


def play(w: Workflow, reply: Reply = seeded, **options: Any) -> Played:
    return play_once(w, {"question": "?"}, reply, **options)
