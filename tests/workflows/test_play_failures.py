"""What fails in a play, whose fault it is, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.small_plays import named, note, play, say, seeded, workflow
from workflows.engine import Completion, Message, Sampling
from workflows.errors import InfraError, UsageError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import JsonKey, Parsed, Tag
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.roles import Role, RoleSettings
from workflows.state import State
from workflows.testing import ScriptedEngine, play_once, without_times
from workflows.trajectory import TURNS, rows_to_table

MAP = ModelMap({"m": Model("m", "b", "scripted")}, {"sayer": "m"})


def test_a_parser_that_raises_is_named_and_its_tokens_are_kept() -> None:
    class Bad:
        def parse(self, text: str) -> Parsed:
            raise KeyError("oops")

    w = Workflow("w", [Role("sayer", "{text}", Bad())], [say("a")])
    played = play(w)
    assert played.episode["stop_reason"] == "workflow_error"
    assert "KeyError: 'oops' (test_play_failures.py:" in played.turns[0]["status_detail"]
    assert played.turns[0]["response_token_ids"]


@pytest.mark.parametrize("verdict", [None, "text", Parsed("x", 1)])  # type: ignore[arg-type]
def test_what_a_parser_returns_instead_of_a_verdict_reaches_no_row(verdict: Any) -> None:
    class Bad:
        def parse(self, text: str) -> Any:
            return verdict

    played = play(Workflow("w", [Role("sayer", "{text}", Bad())], [say("a")]))
    assert "the parser of role 'sayer' returned" in played.episode["error"]
    assert played.turns[0]["format_valid"] is None
    rows_to_table(played.turns, TURNS)


def test_texts_that_no_file_can_hold_are_mended_wherever_they_come_from() -> None:
    class Bad:
        def parse(self, text: str) -> Parsed:
            return Parsed(None, False, "problem \ud800", "lenient \udfff")

    played = play(Workflow("w", [Role("sayer", "{text}", Bad())], [say("a")]))
    assert played.turns[0]["status_detail"] == "problem ?"
    rows_to_table(played.turns, TURNS)


def test_a_fault_of_the_player_itself_costs_one_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("workflows.playing.play.GraphRun.run", broken)
    episode = play(workflow([say("a")])).episode
    assert (episode["status"], episode["stop_reason"]) == ("infra_error", "workflow_error")
    assert "playing workflow 'w': ZeroDivisionError" in episode["error"]


# --- failures that are not the policy's, and what is --------------------------------------------


def test_a_call_that_fails_at_first_is_asked_again_with_the_same_seed() -> None:
    seeds = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        seeds.append(sampling.seed)
        if len(seeds) < 3:
            raise InfraError("busy")

    played = play(workflow([say("a")]), before=before, limits=PlayLimits(backoff_seconds=0))
    assert played.turns[0]["attempts"] == 3
    assert len(set(seeds)) == 1
    assert without_times(played)[0] == [
        {**row, "attempts": 3} for row in without_times(play(workflow([say("a")])))[0]
    ]


def test_what_an_engine_had_said_before_it_failed_is_no_part_of_the_reply() -> None:
    class Breaks(ScriptedEngine):
        async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
            whole = await super().generate(prompt_token_ids, sampling)
            if len(self.completions) < 2:
                raise InfraError("the stream broke")
            return whole

    engine = Breaks(seeded)
    player = Player(workflow([say("a")]), {"m": engine}, MAP, {}, PlayLimits(backoff_seconds=0), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert played.turns[0]["attempts"] == 2
    assert played.turns[0]["response_token_ids"] == engine.completions[1].token_ids
    assert played.episode["num_response_tokens"] == len(engine.completions[1].token_ids)


def test_a_programming_error_in_an_engine_is_not_asked_again() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        raise TypeError("wrong argument")

    played = play(workflow([say("a")]), before=before)
    assert (played.turns[0]["attempts"], played.turns[0]["status"]) == (1, "infra_error")
    assert "TypeError: wrong argument (test_play_failures.py:" in played.episode["error"]


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("limits", "stop"), [
    (PlayLimits(call_timeout_seconds=0.5), "call_failed"),
    (PlayLimits(episode_timeout_seconds=0.5), "episode_timeout"),
])  # fmt: skip
def test_a_time_limit_keeps_what_was_finished_and_marks_what_was_not(limits: PlayLimits, stop: str) -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if messages[-1]["content"] == "hang":
            await never()

    w = workflow(
        [note("a"), say("b", lambda s: "hang"), say("c", lambda s: "go")], [Edge("a", "b"), Edge("a", "c")]
    )
    played = play(w, before=before, limits=limits)
    assert {t["step"]: t["status"] for t in played.turns} | {"c": ""} == {"a": "ok", "b": "timeout", "c": ""}
    assert named(played, "c")[0]["status"] in ("ok", "malformed")
    assert (played.episode["status"], played.episode["stop_reason"]) == ("timeout", stop)
    assert "step 'b'" in played.episode["error"]


def test_cancelling_a_play_cancels_its_calls_and_is_not_an_answer() -> None:
    cancelled = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def run() -> None:
        player = Player(
            workflow([say("a")]), {"m": ScriptedEngine(seeded, before=before)}, MAP, {}, PlayLimits(), 0
        )
        task = asyncio.create_task(
            player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0)
        )
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == [True]


def test_a_call_that_the_engine_cancels_is_a_cancelled_turn() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        raise asyncio.CancelledError

    played = play(workflow([say("a")]), before=before)
    assert (played.turns[0]["status"], played.episode["status"]) == ("cancelled", "cancelled")


BAD_COMPLETIONS: dict[str, dict[str, Any]] = {
    "no tokens": {"token_ids": [], "logprobs": []},
    "1 logprobs for 2 tokens": {"logprobs": [-1.0]},
    "not finite": {"logprobs": [-1.0, float("nan")]},
    "aborted": {"finish_reason": "abort"},
    "not a number from 0": {"token_ids": [1, 2**31]},
    "returned a token id that is no": {"token_ids": [1, 2.5]},
    "a bytes as text": {"text": b"x"},
}


@pytest.mark.parametrize("fault", BAD_COMPLETIONS)
def test_a_completion_that_could_poison_an_update_is_an_engine_failure(fault: str) -> None:
    class Faulty(ScriptedEngine):
        async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
            good: dict[str, Any] = {
                "token_ids": [1, 2], "logprobs": [-1.0, -1.0], "text": "<a>x</a>", "finish_reason": "stop",
                "policy_version": 0, "logprobs_mode": "processed_logprobs",
            }  # fmt: skip
            return Completion(**{**good, **BAD_COMPLETIONS[fault]})

    player = Player(workflow([say("a")]), {"m": Faulty(seeded)}, MAP, {}, PlayLimits(backoff_seconds=0), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert played.episode["status"] == "infra_error"
    assert fault in played.episode["error"]
    assert played.turns[0]["response_token_ids"] is None


def test_a_malformed_reply_is_the_policys_doing_and_the_workflow_goes_on_with_no_value() -> None:
    seen: list[Any] = []

    def keep(state: State) -> str:
        seen.append((state["a"].value, state["a"].valid, state["a"].text))
        return "x"

    played = play(workflow([say("a"), say("b", keep)], [Edge("a", "b")]), lambda m, s: "just text")
    assert seen == [(None, False, "just text")]
    assert [(t["status"], t["status_detail"], t["parsed"], t["format_valid"]) for t in played.turns] == [
        ("malformed", "no <a>", '"just text"', False)
    ] * 2
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")


def test_a_tag_that_only_the_prompt_shows_is_no_answer() -> None:
    w = Workflow("w", [Role("sayer", "{text} Reply like <a>Beijing</a>", Tag("a"))], [say("a")])
    turn = play(w, lambda m, s: "no idea").turns[0]
    assert (turn["status"], turn["parsed"]) == ("malformed", '"no idea"')


def test_a_reply_at_the_token_limit_is_truncated_whether_or_not_its_format_was_complete() -> None:
    limit = {"sayer": RoleSettings(max_response_tokens=12)}
    replies = {"whole": "<a>x</a> and so on and so on", "cut": "<a>and so on and so on"}
    for name, text in replies.items():
        turn = play(workflow([say("a")]), lambda m, s, text=text: text, role_settings=limit).turns[0]
        assert (turn["status"], turn["finish_reason"]) == ("truncated", "length"), name
        assert len(turn["response_token_ids"]) == 12
        assert turn["format_valid"] == (name == "whole")


# --- limits -------------------------------------------------------------------------------------


def lister() -> Workflow:
    role = Role("sayer", "{passages}\nQuestion: {question}", JsonKey("q"), trim=("passages",))
    inputs = {"passages": lambda s: ["p" * 30] * 10, "question": "task.question"}
    return Workflow("w", [role], [LlmStep("a", "sayer", inputs)])


def test_a_long_prompt_loses_passages_says_so_and_keeps_its_question() -> None:
    room = {"sayer": RoleSettings(max_prompt_tokens=120)}
    turn = play(lister(), role_settings=room).turns[0]
    assert 100 < turn["num_prompt_tokens"] <= 120
    kept = json.loads(turn["messages"])[-1]["content"].count("p" * 30)
    assert json.loads(turn["cut"]) == {"passages": {"items": 10 - kept}}
    assert json.loads(turn["messages"])[-1]["content"].endswith("Question: ?")


def test_a_prompt_that_can_not_fit_is_never_asked_and_is_counted_by_its_own_name() -> None:
    room = {"sayer": RoleSettings(max_prompt_tokens=60)}
    played = play_once(lister(), {"question": "q" * 100}, seeded, role_settings=room)
    turn = played.turns[0]
    assert turn["status"] == played.episode["status"] == "infra_error"  # not the policy's doing
    assert played.episode["stop_reason"] == "prompt_too_long"
    tokens = turn["num_prompt_tokens"]
    assert turn["status_detail"] == f"prompt_too_long: {tokens} tokens exceed 60 after trimming"
    assert turn["prompt_token_ids"] is None
    assert turn["attempts"] == 0


def test_a_role_whose_prompt_never_has_room_is_refused_before_any_play() -> None:
    shown = Role("sayer", "{text}", Tag("a"), demonstrations=(("d" * 300, "<a>x</a>"),))
    w = Workflow("w", [shown], [say("a")])
    room = {"sayer": RoleSettings(max_prompt_tokens=100)}
    with pytest.raises(UsageError, match=r"role 'sayer': its prompt has \d+ tokens before .*room for 100"):
        play(w, role_settings=room)
    bare = {"sayer": RoleSettings(max_prompt_tokens=100, demonstrations=False)}
    assert play(w, role_settings=bare).episode["status"] == "ok"


def test_an_episode_stops_at_its_number_of_turns() -> None:
    w = workflow([note("a")], [Edge("a", "a", lambda s: True, limit=100)])
    played = play(w, limits=PlayLimits(max_turns=5))
    assert len(played.turns) == 5
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")
