"""Rewards, a team and a script that tests of whole runs name by their import path."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from rewards.base import PlayedEpisode
from workflows.engine import Message, Sampling
from workflows.graph import Edge, LlmStep, Workflow
from workflows.parsers import Tag
from workflows.roles import Role
from workflows.state import State
from workflows.steps import Source


def sometimes(episode: PlayedEpisode) -> Sequence[float | None]:
    """A number that differs between the plays of every third task, and is 0 for all plays of the others."""
    task, _, sample = episode.episode_id.partition("/")[2].rpartition("/")
    value = float(int(sample) % 2) if sum(map(ord, task)) % 3 == 0 else 0.0
    addressed = set(episode.trainable())
    return [value if place in addressed else None for place in range(len(episode.turns))]


def line(roles: int = 3) -> Workflow:
    """A task is handed on from role to role, each of which sees the words of the one before it alone."""
    speakers = [Role(f"r{i}", "Say: {text}", Tag("answer"), max_response_tokens=40) for i in range(roles)]
    texts: list[Source] = ["task.question", *(_said_in(f"s{i}") for i in range(roles - 1))]
    steps = [LlmStep(f"s{i}", f"r{i}", {"text": text}) for i, text in enumerate(texts)]
    return Workflow(
        "line",
        speakers,
        steps,
        [Edge(f"s{i}", f"s{i + 1}") for i in range(roles - 1)],
        answer_step=f"s{roles - 1}",
    )


def _said_in(step: str) -> Callable[[State], str]:
    return lambda state: state[step].text


def equally_long(messages: Sequence[Message], sampling: Sampling) -> str:
    """A reply that differs for each seed and has 31 tokens of the scripted model whatever it says."""
    return f"<answer>{sampling.seed or 0:019d}</answer>"


def of_prompt(messages: Sequence[Message], sampling: Sampling) -> str:
    """As long, and other digits for each prompt too."""
    said = f"{sampling.seed} {messages[-1]['content']}".encode()
    return f"<answer>{int.from_bytes(hashlib.blake2b(said, digest_size=7).digest()):019d}</answer>"


def last_digit(episode: PlayedEpisode) -> Sequence[float | None]:
    """The last digit of what was said last: different for most plays of a task."""
    said = [turn["response_text"] for turn in episode.turns if turn["response_text"]]
    digits = [c for c in said[-1] if c.isdecimal()] if said else []
    addressed = set(episode.trainable())
    value = float(digits[-1]) if digits else 0.0
    return [value if place in addressed else None for place in range(len(episode.turns))]


def fork() -> Workflow:
    """Two roles answer side by side, and a third has the last word."""
    names = ("left", "right", "end")
    return Workflow(
        "fork",
        [Role(name, "Say: {text}", Tag("answer"), max_response_tokens=40) for name in names],
        [LlmStep(name, name, {"text": "task.question"}) for name in names],
        [Edge("left", "end"), Edge("right", "end")],
        answer_step="end",
        start=("left", "right"),
    )


def joined() -> Workflow:
    """Two roles answer side by side, and a third reads both and has the last word."""

    def both(state: State) -> str:
        return f"{state['left'].text} {state['right'].text}"

    return Workflow(
        "joined",
        [Role(n, "Say: {text}", Tag("answer"), max_response_tokens=40) for n in ("left", "right", "end")],
        [
            LlmStep("left", "left", {"text": "task.question"}),
            LlmStep("right", "right", {"text": "task.question"}),
            LlmStep("end", "end", {"text": both}),
        ],
        [Edge("left", "end"), Edge("right", "end")],
        answer_step="end",
        start=("left", "right"),
    )
