"""Plays of async functions on the scripted model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.engine import Message, Sampling
from workflows.errors import ToolRefusal
from workflows.parsers import Tag
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.team import Team
from workflows.testing import play_once

SAYER = Role("sayer", "{text}", Tag("a"))


Task = Mapping[str, Any]


def seeded(messages: Sequence[Message], sampling: Sampling) -> str:
    """Well-formed four times in five, and different for each seed."""
    luck = random.Random(sampling.seed)
    return f"<a>{luck.randrange(100)}</a>" if luck.random() < 0.8 else "no tag"


def script(run: Any, **options: Any) -> ScriptWorkflow:
    steps = {"say": "sayer", "sum": "sayer", "look": "look", "note": None}
    return ScriptWorkflow("s", [SAYER], run, **{"steps": steps, "tools": {"look": look}, **options})


async def look(request: Any) -> Any:
    if request == "refused":
        raise ToolRefusal("no")
    return {"found": request}


def play(run: Any, **options: Any) -> Played:
    return play_once(script(run), {"question": "?"}, seeded, **options)


def names(played: Played) -> list[tuple[str, int, str]]:
    return [(t["step"], t["round"], t["branch"]) for t in played.turns]


def say(team: Team, text: Any, **options: Any) -> asyncio.Task[Output]:
    return team.call("say", {"text": text}, **options)
