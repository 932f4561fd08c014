"""Workflows as async functions: how a function, a branch or a play fails and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.script_plays import Task, names, play, say
from workflows.engine import Message, Sampling
from workflows.errors import InfraError
from workflows.models import ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.episode import TurnFailed
from workflows.playing.play import Player
from workflows.script import ScriptWorkflow
from workflows.team import Team


async def boom(team: Team, task: Task) -> None:
    await say(team, "x")
    raise ValueError("bad code")


async def unknown(team: Team, task: Task) -> None:
    await team.call("sya", {"text": "x"})


async def of_a_tool(team: Team, task: Task) -> None:
    await team.call("look", {"text": "x"})


async def other_variables(team: Team, task: Task) -> None:
    await team.call("say", {"txt": "x"})


async def blank(team: Team, task: Task) -> None:
    refused = await team.tool("look", "refused")
    await say(team, refused)


async def no_json(team: Team, task: Task) -> None:
    team.note("note", {1, 2})


async def in_a_second_task(team: Team, task: Task) -> None:
    async def work() -> None:
        await say(team, "x")

    await asyncio.gather(work(), work())


async def one_branch_for_two(team: Team, task: Task) -> None:
    async def work(branch: Team) -> None:
        await say(branch, "x")

    await asyncio.gather(work(team.branch(0)), work(team.branch(0)))


async def not_awaited(team: Team, task: Task) -> None:
    async def work(branch: Team) -> None:
        while True:
            await say(branch, "x")

    task_of_its_own = asyncio.create_task(work(team.branch(0)))
    await say(team, "y")
    assert not task_of_its_own.done()


async def lost(team: Team, task: Task) -> None:
    of_its_own = asyncio.create_task(boom(team.branch(0), task))
    while not of_its_own.done():
        await asyncio.sleep(0)


async def grouped(team: Team, task: Task) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(boom(team.branch(0), task))


@pytest.mark.parametrize(("run", "cause"), [
    (boom, "the function of workflow 's': ValueError: bad code (test_script_failures.py:"),
    (unknown, "there is no step 'sya' (did you mean 'say'?)"),
    (of_a_tool, "step 'look' is not a role's: 'look' acts in it"),
    (other_variables, "step 'say' is called with txt; the prompt of role 'sayer' uses text"),
    (blank, "input 'text' of step 'say' is the output of step 'look', which has no value"),
    (no_json, "the computed value is not JSON"),
    (in_a_second_task, "from a second asyncio task"),
    (one_branch_for_two, "'0', which was handed out again since"),
    (not_awaited, "it returned while a coroutine that it began still ran"),
    (grouped, "ValueError: bad code"),
    (lost, "ValueError: bad code"),
])  # fmt: skip
def test_a_mistake_in_the_function_ends_the_episode_with_its_cause_and_keeps_its_turns(
    run: Any, cause: str
) -> None:
    played = play(run, limits=PlayLimits(max_turns=9))
    assert cause in played.episode["error"]
    assert (played.episode["status"], played.episode["stop_reason"]) == ("infra_error", "workflow_error")
    assert all(t["status"] in ("ok", "malformed", "tool_error") for t in played.turns)


def test_a_mistake_that_the_function_handles_is_none() -> None:
    async def run(team: Team, task: Task) -> None:
        failed = await asyncio.gather(boom(team.branch(0), task), return_exceptions=True)
        team.note("note", str(failed[0]))

    assert json.loads(play(run).turns[-1]["parsed"]) == "bad code"
    assert play(run).episode["status"] == "ok"


@pytest.mark.parametrize("branches", ["each", "gather"])
def test_a_branch_that_fails_loses_no_call_of_its_siblings(branches: str) -> None:
    asked: list[str] = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        asked.append(messages[-1]["content"])
        if messages[-1]["content"] == "fail":
            raise InfraError("engine down")
        while "fail" not in asked:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    async def work(branch: Team, text: str) -> None:
        await say(branch, text)
        await say(branch, f"{text} again")

    async def run(team: Team, task: Task) -> None:
        if branches == "each":
            await team.each(["fine", "fail"], work)
        else:
            await asyncio.gather(*(work(team.branch(i), text) for i, text in enumerate(["fine", "fail"])))

    played = play(run, before=before, limits=PlayLimits(call_attempts=1))
    kept = [n for n, t in zip(names(played), played.turns, strict=True) if t["status"] in ("ok", "malformed")]
    # each finishes the sibling; a bare gather gives up at once, and only what was begun is finished
    assert kept == [("say", 0, "0"), ("say", 1, "0")][: 2 if branches == "each" else 1]
    assert (played.episode["status"], played.episode["stop_reason"]) == ("infra_error", "call_failed")


def test_a_failure_that_the_function_catches_still_marks_the_episode() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if messages[-1]["content"] == "fail":
            raise InfraError("engine down")

    async def run(team: Team, task: Task) -> None:
        try:
            await say(team, "fail")
        except TurnFailed:
            await say(team, "go on")

    played = play(run, before=before, limits=PlayLimits(backoff_seconds=0))
    assert [t["status"] == "infra_error" for t in played.turns] == [True, False]
    assert (played.episode["status"], played.episode["stop_reason"]) == ("infra_error", "call_failed")


def test_an_episode_stops_at_its_number_of_turns_whatever_the_function_catches() -> None:
    async def run(team: Team, task: Task) -> None:
        for _ in range(9):
            await say(team, "x")

    async def stubborn(team: Team, task: Task) -> None:
        try:
            await run(team, task)
        except Exception:
            await say(team, "one more")

    for function in (run, stubborn):
        played = play(function, limits=PlayLimits(max_turns=3))
        assert len(played.turns) == 3
        assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("deaf", [False, True])
def test_the_end_of_its_time_ends_a_function_and_its_calls(deaf: bool) -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if messages[-1]["content"] == "hang":
            await never()

    async def run(team: Team, task: Task) -> None:
        await say(team, "fine")
        try:
            await say(team, "hang")
        except asyncio.CancelledError:
            if not deaf:
                raise
            await never()

    limits = PlayLimits(episode_timeout_seconds=0.3, grace_seconds=0.01)
    played = play(run, before=before, limits=limits)
    assert [t["status"] == "timeout" for t in played.turns] == [False, True]
    assert (played.episode["status"], played.episode["stop_reason"]) == ("timeout", "episode_timeout")


def test_cancelling_a_play_cancels_its_calls() -> None:
    cancelled: list[str] = []

    async def hang(request: Any) -> Any:
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.append(request)
            raise

    async def run(team: Team, task: Task) -> None:
        async def work(branch: Team, item: str) -> None:
            await branch.tool("hang", item)

        await team.each(["a", "b"], work)

    async def main() -> None:
        workflow = ScriptWorkflow("s", [], run, tools={"hang": hang})
        player = Player(workflow, {}, ModelMap({}, {}), {}, PlayLimits(), 0)
        play = asyncio.create_task(player.play({"task_id": "t", "inputs": {}}, iteration=0, sample=0))
        for _ in range(20):
            await asyncio.sleep(0)
        play.cancel()
        with pytest.raises(asyncio.CancelledError):
            await play

    asyncio.run(main())
    assert sorted(cancelled) == ["a", "b"]


def test_gold_is_not_in_the_task_that_the_function_gets() -> None:
    async def run(team: Team, task: Task) -> None:
        team.note("note", sorted(task))

    assert json.loads(play(run).turns[0]["parsed"]) == ["question"]
