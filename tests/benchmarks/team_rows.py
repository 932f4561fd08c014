"""Rows of one iteration of shipped teams, with the prompts of a real model: what updates are measured on.

The replies are scripted, because what they say does not matter to the time: some of a group are alike and
some are not. Prompts and replies are in the tokens of the checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stages.weights.chat import ChatRenderer
from workflows.data.tasks import choose, load_tasks
from workflows.engine import Message, Sampling
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.testing import Reply, ScriptedEngine, echo_qa


@dataclass(frozen=True, slots=True)
class Team:
    """One iteration: so many tasks of a set, each played so many times."""

    name: str
    workflow: str
    options: dict[str, Any]
    data: str
    tasks: int
    plays: int
    goal: float  # of its update's rate against a bare loop's
    reply: Reply


def read(messages: Sequence[Message], sampling: Sampling) -> str:
    """Copies a sentence of the prompt, or says a place: right or not, with its tag or without."""
    luck = random.Random(sampling.seed)
    prompt = messages[-1]["content"]
    lines = [line for line in prompt.splitlines() if line.endswith(".") and " in the " in line]
    line = luck.choice(lines or ["It is in the garden."])
    if "<sentence>" in prompt:
        return f"<sentence>{line}</sentence>" if luck.random() < 0.8 else line
    place = line.rsplit(" in ", 1)[1].rstrip(".")
    return f"<answer>{place}</answer>" if luck.random() < 0.8 else f"It is in {place}."


TEAMS: Final = (
    Team("qa_decompose", "qa_decompose", {"top_k": 2, "readers": True}, "facts", 4, 4, 2.6, echo_qa),
    Team("reading", "reading", {"hops": 1}, "reading", 8, 8, 4.0, read),
    Team("single", "single", {"task": "reading"}, "reading", 8, 8, 8.0, read),
)


def team_rows(team: Team, checkpoint: str, model_id: str, version: int, seed: int) -> list[dict[str, Any]]:
    """The turns of one iteration as rows of a partition, without a place in it."""
    tasks = choose(load_tasks(team.data).tasks, "train", seed, 0, team.tasks)
    workflow = load_workflow(team.workflow, team.options)
    models = ModelMap({"m": Model("m", "m", "scripted")}, dict.fromkeys(workflow.roles, "m"))
    engine = ScriptedEngine(team.reply, model_id="m")
    player = Player(workflow, {"m": engine}, models, {}, PlayLimits(), seed)

    async def play() -> list[Any]:
        shown = [row | {"inputs": json.loads(row["inputs"])} for row in tasks.drop(["gold"]).to_pylist()]
        return [await player.play(t, iteration=0, sample=k) for t in shown for k in range(team.plays)]

    said = Tokens(checkpoint)
    turns = [turn for played in asyncio.run(play()) for turn in played.turns if turn["event"] == "llm"]
    return [_row(turn, said, model_id, version) for turn in turns]


class Tokens:
    """Chats and replies in the tokens of a checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        from transformers import AutoTokenizer

        self.renderer = ChatRenderer(checkpoint)
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def reply(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


def _row(turn: dict[str, Any], said: Tokens, model_id: str, version: int) -> dict[str, Any]:
    response = said.reply(turn["response_text"])
    return {
        "episode_id": turn["episode_id"],
        "turn_index": turn["turn_index"],
        "group_id": turn["group_id"],
        "model_id": model_id,
        "role": turn["role"],
        "step": turn["step"],
        "policy_version": version,
        "prompt_token_ids": said.renderer.render(json.loads(turn["messages"])),
        "response_token_ids": response,
        "behaviour_logprobs": [-10.0] * len(response),
        "temperature": 1.0,
        "return": 0.0,
        "advantage": 1.0 if turn["turn_index"] % 2 else -1.0,
    }
