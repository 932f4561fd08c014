"""A role's conversation: earlier turns of the episode in its prompt, token in, token out."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.engine import ChatReply
from workflows.errors import UsageError, WorkflowError
from workflows.graph import Workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.roles import Role, RoleSettings
from workflows.script import ScriptWorkflow
from workflows.steps import Edge, LlmStep
from workflows.testing import ScriptedEngine, play_once

WRITER = Role(
    "writer", "Task: {task}", conversation=True, follow_up="Feedback: {feedback}", max_response_tokens=40
)


def loop(role: Role, rounds: int) -> Workflow:
    """The role speaks `rounds` times, each time told its last words."""
    inputs = {"task": "task.task", "feedback": lambda s: s["write"].text if s.ran("write") else None}
    edges = [Edge("write", "write", limit=rounds - 1)]
    return Workflow("loop", [role], [LlmStep("write", "writer", inputs)], edges, start=["write"])


def function(role: Role, rounds: int) -> ScriptWorkflow:
    async def run(team: Any, task: Any) -> None:
        said = await team.call("writer", {"task": task["task"]})
        for _ in range(rounds - 1):
            said = await team.call("writer", {"feedback": said.text}, reads=[said])

    return ScriptWorkflow("function", [role], run)


class OtherIds(ScriptedEngine):
    """Samples single bytes where its tokenizer has pairs, so that no reply's text encodes to its ids."""

    async def generate(self, prompt_token_ids, sampling):
        completion = await super().generate(prompt_token_ids, sampling)
        ids = [b for i in completion.token_ids for b in (self.model.decode([i]).encode() or [i])]
        ids = ids[: sampling.max_tokens]
        return replace(completion, token_ids=ids, logprobs=[-1.0] * len(ids), text=self.model.decode(ids))


def play(workflow: Any, engine: Any, role_settings: Any = None, task: str = "sum") -> Any:
    names = list(workflow.roles)
    models = ModelMap({"m": Model("m", "m", "scripted")}, dict.fromkeys(names, "m"))
    player = Player(workflow, {"m": engine}, models, role_settings or {}, PlayLimits(), 0)
    given = {"task_id": "t", "inputs": {"task": task}}
    return asyncio.run(player.play(given, iteration=0, sample=0))


def babble(messages: Any, sampling: Any) -> str:
    luck = random.Random(sampling.seed)
    return "".join(luck.choice("abc dé<>") for _ in range(luck.randrange(60)))  # some too long, some empty


@settings(max_examples=30, deadline=None)
@given(rounds=st.integers(2, 6), odd=st.booleans(), graph=st.booleans(), task=st.text(max_size=20))
def test_each_prompt_begins_with_the_prompt_and_the_reply_before_it(
    rounds: int, odd: bool, graph: bool, task: str
) -> None:
    engine = (OtherIds if odd else ScriptedEngine)(babble, model_id="m")
    played = play((loop if graph else function)(WRITER, rounds), engine, task=task)
    assert played.episode["status"] == "ok", played.episode["error"]
    turns = played.turns
    assert len(turns) == rounds
    for before, after in itertools.pairwise(turns):
        kept = before["prompt_token_ids"] + before["response_token_ids"]
        assert after["prompt_token_ids"][: len(kept)] == kept
        # where the text encodes to what was sampled, it is the prompt that rendering gives
        if not odd and "\ufffd" not in after["messages"]:
            assert after["prompt_token_ids"] == engine.render(json.loads(after["messages"]))
        assert len(after["prompt_token_ids"]) == after["num_prompt_tokens"]
    for index, turn in enumerate(turns):
        roles = [message["role"] for message in json.loads(turn["messages"])]
        assert roles == ["user", "assistant"] * index + ["user"]
        assert (turn["conversation"], turn["conversation_turn"]) == ("writer", index)
        assert (turn["lineage"], turn["lineage_parent"]) == ("writer#0", None)


def test_a_reply_that_the_limit_cut_gets_the_end_of_its_turn() -> None:
    played = play(function(WRITER, 2), ScriptedEngine(lambda m, s: "#" * 50, model_id="m"))
    first, second = played.turns
    assert first["status"] == "truncated"
    kept = first["prompt_token_ids"] + first["response_token_ids"]
    assert second["prompt_token_ids"][len(kept)] == 257  # the mark that the model did not come to


def test_demonstrations_and_system_stand_once_before_the_conversation() -> None:
    shown = replace(WRITER, system="Be brief.", demonstrations=(({"task": "one"}, "1"),))
    messages = json.loads(
        play_once(function(shown, 2), {"task": "two"}, {"writer": "2"}).turns[1]["messages"]
    )
    assert [m["content"] for m in messages] == [
        *("Be brief.", "Task: one", "1", "Task: two", "2"),
        "Feedback: 2",
    ]


def test_each_branch_has_a_conversation_of_its_own() -> None:
    async def run(team: Any, task: Any) -> None:
        async def twice(branch: Any, item: str) -> None:
            await branch.call("writer", {"task": item})
            await branch.call("writer", {"feedback": item})

        await team.each(["a", "b"], twice)
        await team.call("writer", {"task": "c"})

    played = play_once(ScriptWorkflow("w", [WRITER], run), {}, {"writer": "x"})
    seen = [(t["branch"], t["conversation"], t["conversation_turn"]) for t in played.turns]
    assert sorted(seen) == [
        ("", "writer", 0),
        *[("0", "writer/0", 0), ("0", "writer/0", 1), ("1", "writer/1", 0), ("1", "writer/1", 1)],
    ]
    (second,) = [t for t in played.turns if (t["branch"], t["conversation_turn"]) == ("1", 1)]
    assert '"Task: b"' in second["messages"]
    assert '"Task: a"' not in second["messages"]


def test_a_turn_waits_for_the_reply_before_it() -> None:
    async def run(team: Any, task: Any) -> None:
        first = team.call("writer", {"task": "a"})
        second = team.call("writer", {"feedback": "b"})  # begun before the first has answered
        await asyncio.gather(first, second)

    played = play_once(ScriptWorkflow("w", [WRITER], run), {}, {"writer": "said"})
    assert [m["content"] for m in json.loads(played.turns[1]["messages"])] == [
        *("Task: a", "said", "Feedback: b"),
    ]


def test_a_call_that_is_cancelled_before_it_began_holds_nobody_up() -> None:
    async def run(team: Any, task: Any) -> None:
        team.call("writer", {"task": "a"}).cancel()
        await team.call("writer", {"task": "b"})

    limits = PlayLimits(episode_timeout_seconds=20)
    played = play_once(ScriptWorkflow("w", [WRITER], run), {}, {"writer": "said"}, limits=limits)
    assert [t["response_text"] for t in played.turns] == [None, "said"]


def test_turns_of_one_conversation_that_have_no_order_are_refused() -> None:
    role = Role("writer", "{task}", conversation=True)
    begin = Role("starter", "{task}")
    inputs = {"task": "task.task"}
    actors = {"begin": "starter", "one": "writer", "two": "writer"}
    steps = [LlmStep(name, actor, inputs) for name, actor in actors.items()]
    workflow = Workflow("w", [begin, role], steps, [Edge("begin", "one"), Edge("begin", "two")])
    played = play_once(workflow, {"task": "a"}, {"writer": "x", "starter": "y"})
    assert played.episode["stop_reason"] == "workflow_error"
    assert "step 'two' does not come after its step 'one'" in played.episode["error"]


def test_a_conversation_that_has_no_room_is_refused_or_loses_its_oldest_replies() -> None:
    def longer(rounds: int, when_full: Any) -> Any:
        role = replace(WRITER, when_full=when_full)
        engine = ScriptedEngine(lambda m, s: f"{len(m)}".rjust(20, "#"), model_id="m")
        return play(function(role, rounds), engine, {"writer": RoleSettings(max_prompt_tokens=150)}).turns

    refused = longer(6, "refuse")
    assert "prompt_too_long" in refused[-1]["status_detail"]
    assert len(refused) < 6
    turns = longer(6, "drop_oldest")
    assert [t["status"] for t in turns] == ["ok"] * 6
    last = json.loads(turns[-1]["messages"])
    assert last[0]["content"] == "Task: sum"  # the task stays
    assert [m["role"] for m in last] == ["user", "assistant"] * (len(last) // 2) + ["user"]
    assert last[-2]["content"] == turns[-2]["response_text"]  # and so does the newest reply
    lineages = [t["lineage"] for t in turns]
    assert lineages[0] == "writer#0"
    assert lineages[-1] != "writer#0"
    for before, after in itertools.pairwise(turns):
        kept = before["prompt_token_ids"] + before["response_token_ids"]
        same = before["lineage"] == after["lineage"]
        assert (after["prompt_token_ids"][: len(kept)] == kept) == same
        if not same:
            assert after["lineage_parent"] == before["lineage"]
        assert after["num_prompt_tokens"] <= 150


class Api:
    """A model behind an API: messages in, text out."""

    model_id = base_id = "m"
    policy_version, max_model_len, trainable = 0, 4096, False

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    def count_tokens(self, messages: Any) -> int:
        return sum(len(m["content"]) for m in messages)

    async def chat(self, messages: Any, sampling: Any) -> ChatReply:
        self.asked.append([(m["role"], m["content"]) for m in messages])
        return ChatReply(f"reply {len(self.asked)}", "stop", 0)


def test_a_model_behind_an_api_gets_the_chat_and_no_lineage() -> None:
    api = Api()
    turns = play(function(WRITER, 3), api).turns
    assert api.asked[2] == [
        *[("user", "Task: sum"), ("assistant", "reply 1"), ("user", "Feedback: reply 1")],
        *[("assistant", "reply 2"), ("user", "Feedback: reply 2")],
    ]
    assert [t["conversation_turn"] for t in turns] == [0, 1, 2]
    assert {t["lineage"] for t in turns} == {None}


def test_a_model_that_cannot_continue_a_chat_is_refused_before_anything_is_played() -> None:
    class Old(ScriptedEngine):
        def __getattribute__(self, name: str) -> Any:
            if name == "render_after":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(UsageError, match="role 'writer' keeps a conversation, but the engine of model 'm'"):
        play(function(WRITER, 2), Old(babble, model_id="m"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"follow_up": "more"}, "follow_up is for conversations; set conversation=True"),
        ({"when_full": "drop_oldest"}, "when_full is for conversations"),
        (
            {"conversation": True, "when_full": "forget"},
            "when_full is 'refuse' or 'drop_oldest', not 'forget'",
        ),
    ],
)
def test_what_is_for_conversations_needs_one(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        Role("writer", "{task}", **options)


def test_a_call_gives_the_variables_of_the_prompt_or_of_the_follow_up() -> None:
    async def run(team: Any, task: Any) -> None:
        await team.call("writer", {"other": "x"})

    played = play_once(ScriptWorkflow("w", [WRITER], run), {}, {"writer": "x"})
    assert "called with other; the prompt of role 'writer' uses task or feedback" in played.episode["error"]
