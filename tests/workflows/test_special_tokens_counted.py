"""A turn whose prompt's contents spell special tokens says how many, in its metrics."""

from __future__ import annotations

import asyncio

from workflows.graph import Workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.roles import Role
from workflows.steps import LlmStep
from workflows.testing import ScriptedEngine
from workflows.trajectory import SPECIAL_TOKENS_AS_TEXT


class Spelled(ScriptedEngine):
    """A scripted engine whose tokenizer has one special token."""

    def special_tokens_in(self, messages):
        return sum(message["content"].count("<|end|>") for message in messages)


def _turn(question: str):
    role = Role("answerer", "{question}")
    steps = [LlmStep("answer", "answerer", {"question": "task.question"})]
    workflow = Workflow("one", [role], steps, [])
    models = ModelMap({"m": Model("m", "b", "scripted")}, {"answerer": "m"})
    player = Player(workflow, {"m": Spelled(lambda chat, sampling: "x")}, models, {}, PlayLimits(), 0)
    task = {"task_id": "t", "inputs": {"question": question}}
    return asyncio.run(player.play(task, iteration=0, sample=0)).turns[0]


def test_special_tokens_in_a_prompts_contents_are_counted_where_there_are_any():
    assert _turn("a <|end|> b <|end|>")["metrics"] == [{"name": SPECIAL_TOKENS_AS_TEXT, "value": 2.0}]
    assert _turn("a b")["metrics"] == []
