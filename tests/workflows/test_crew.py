"""Plays that spawn others: limits, budgets, joins, cancels, messages, and rows that no timing changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learning import random_traces
from tests.support.replays import content, stored
from tests.support.spawn_trees import Trees, check_accounts
from workflows.acts import TRUNK, acted
from workflows.crew import Crew, OutOfBudget
from workflows.engine import Message, Sampling
from workflows.errors import InfraError, WorkflowError
from workflows.pace import Budget, Pace, Spawning
from workflows.parsers import Tag
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.testing import play_once, without_times
from workflows.vocabulary import Act, Ending, Event, Status

Lead = Callable[[Crew, Output], Any]


def played(lead: Lead, *, spawning: Spawning | None = None, **more: Any) -> Played:
    """One play of `lead(team, plan)`, whose plan is the reply of the role `lead`."""

    async def run(team: Crew, task: Mapping[str, Any]) -> None:
        await lead(team, await team.call("lead", {"say": "plan"}))

    roles = [
        Role("lead", "{say}", conversation=True, follow_up="{say}"),
        Role("helper", "do {brief}", parser=Tag("answer"), max_response_tokens=64),
    ]
    team = ScriptWorkflow("crew", roles, run, spawning=spawning or Spawning(2, 3))
    return play_once(team, {}, {"lead": "the plan", "helper": _help}, **more)


def _help(messages: Sequence[Message], sampling: Sampling) -> str:
    """As many words as the brief says, in the form; without it where the brief says "bad"."""
    brief = messages[-1]["content"].removeprefix("do ")
    words = " ".join(["word"] * int(brief)) if brief.isdecimal() else brief
    return words if brief == "bad" else f"<answer>{words}</answer>"


async def work(team: Crew, brief: Output) -> Output:
    return await team.call("helper", {"brief": brief})


def acts(episode: Played, act: Act) -> list[Any]:
    return [each for each in acted(episode.turns) if each.act == act]


def test_results_come_back_as_values_and_the_rows_say_how() -> None:
    came: list[Any] = []

    async def lead(team: Crew, plan: Output) -> None:
        for brief in ("1", "bad"):
            team.spawn("helper", brief, work, by=plan)
        came.extend(await team.join())
        await team.call("lead", {"say": [each.output.value for each in came]}, reads=[c.output for c in came])

    episode = played(lead)
    assert [(each.ending, each.output.value, each.output.lenient) for each in came] == [
        (Ending.DONE, "word", "word"),
        (Ending.MALFORMED, None, came[1].output.lenient),
    ]
    rows = {(row["step"], row["branch"], row["round"]): row for row in episode.turns}
    spawn, helper = rows["spawn", "", 1], rows["helper", "1", 0]
    back, join, last = rows["return", "1", 0], rows["join", "", 0], rows["lead", "", 1]
    assert spawn["decided_by"] == rows["lead", "", 0]["turn_index"]
    assert helper["parents"] == [spawn["turn_index"]]
    assert helper["instance"] == back["instance"] == "helper/1"
    assert back["parents"] == [helper["turn_index"]]
    assert back["decided_by"] == helper["turn_index"]
    assert back["recipients"] == [TRUNK]
    assert json.loads(back["act_detail"])["ending"] == "malformed"
    assert back["turn_index"] in join["parents"]
    assert back["turn_index"] in last["parents"]
    assert {row["instance"] for row in episode.turns if not row["branch"]} == {None}
    assert episode.episode["status"] == "ok"
    assert episode.episode["modelled_seconds"] == 3.0  # lead, helpers side by side, lead


def test_the_first_by_modelled_time_is_the_one_with_fewer_tokens() -> None:
    first: list[str] = []

    async def lead(team: Crew, plan: Output) -> None:
        for brief in ("9", "2", "5"):
            team.spawn("helper", brief, work, by=plan)
        first.extend(each.instance for each in await team.join(want=2))

    episode = played(lead, spawning=Spawning(pace=Pace(order="modelled")))
    assert first == ["helper/1", "helper/2"]
    (cancel,) = acts(episode, Act.CANCEL)
    assert cancel.recipients == ("helper/0",)  # what is not joined ends with its spawner
    (row,) = [row for row in episode.turns if row["status"] == Status.CALLED_OFF]
    assert (row["branch"], row["response_text"], row["response_token_ids"]) == ("0", None, None)
    assert row["prompt_token_ids"]
    assert (episode.episode["status"], episode.episode["error"]) == ("ok", None)


def test_limits_are_told_before_a_spawn_and_hold() -> None:
    rooms: list[int] = []

    async def lead(team: Crew, plan: Output) -> None:
        rooms.append(team.room)
        for _ in range(2):
            team.spawn("helper", "1", below)
        rooms.append(team.room)
        await team.join()
        rooms.append(team.room)

    async def below(team: Crew, brief: Output) -> Output:
        rooms.append(team.room)
        return await work(team, brief)

    episode = played(lead, spawning=Spawning(max_depth=1, max_width=2))
    assert rooms == [2, 0, 0, 0, 2]
    assert episode.episode["status"] == "ok"

    async def one_more(team: Crew, plan: Output) -> None:
        for _ in range(3):
            team.spawn("helper", "1", work)

    failed = played(one_more, spawning=Spawning(max_depth=1, max_width=2)).episode
    assert failed["stop_reason"] == "workflow_error"
    assert "no room" in failed["error"]
    assert "Ask team.room first" in failed["error"]


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (Budget(turns=2), "2 of 2 turns"),
        (Budget(tokens=20), "20 of 20 tokens"),
        (Budget(seconds=3.0), "3 of 3 seconds"),
    ],
)
def test_a_budget_ends_a_play_between_its_calls_and_cuts_its_replies(budget: Budget, told: str) -> None:
    came: list[Any] = []

    async def on_and_on(team: Crew, brief: Output) -> Any:
        while True:
            await team.call("helper", {"brief": brief})

    async def lead(team: Crew, plan: Output) -> None:
        team.spawn("helper", "3", on_and_on, budget=budget)
        came.extend(await team.join())

    episode = played(lead)
    assert came[0].ending == Ending.BUDGET
    assert told in came[0].reason
    assert not came[0].output.valid
    sampled = sum(row["num_response_tokens"] or 0 for row in episode.turns if row["role"] == "helper")
    assert budget.tokens is None or sampled == budget.tokens
    assert episode.episode["status"] == "ok"


def test_a_play_out_of_budget_may_give_back_what_it_has() -> None:
    came: list[Any] = []

    async def careful(team: Crew, brief: Output) -> Any:
        try:
            for _ in range(9):
                last = await team.call("helper", {"brief": brief})
        except OutOfBudget:
            return last

    async def lead(team: Crew, plan: Output) -> None:
        team.spawn("helper", "1", careful, budget=Budget(turns=2))
        came.extend(await team.join())

    played(lead)
    assert (came[0].ending, came[0].output.value) == (Ending.DONE, "word")


def test_a_failure_of_a_play_is_raised_where_it_is_joined_and_marks_the_episode() -> None:
    seen: list[str] = []

    async def lead(team: Crew, plan: Output) -> None:
        for brief in ("1", "2"):
            team.spawn("helper", brief, work)
        try:
            await team.join()
        finally:
            seen.append("after both")

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if messages[-1]["content"] == "do 1":
            raise InfraError("the engine is gone")

    episode = played(lead, before=before, limits=PlayLimits(call_attempts=1))
    assert seen == ["after both"]
    assert episode.episode["status"] == "infra_error"
    assert [each.ending for each in acts(episode, Act.RETURN)] == [Ending.FAILED, Ending.DONE]


def test_a_mistake_in_a_plays_code_ends_the_episode_even_if_nobody_joins_it() -> None:
    async def wrong(team: Crew, brief: Output) -> Any:
        await work(team, brief)
        raise KeyError("typo")

    async def lead(team: Crew, plan: Output) -> None:
        team.spawn("helper", "1", wrong)
        await team.call("lead", {"say": "on"})
        await team.call("lead", {"say": "and on"})

    episode = played(lead).episode
    assert (episode["status"], episode["stop_reason"]) == ("infra_error", "workflow_error")
    assert "typo" in episode["error"]


def test_messages_arrive_by_modelled_time() -> None:
    heard: list[Any] = []

    async def listens(team: Crew, brief: Output) -> Any:
        for _ in range(3):
            await team.call("helper", {"brief": "1"})
            heard.append([each.value for each in await team.inbox()])
        heard.append(await team.receive())
        return "done"

    async def lead(team: Crew, plan: Output) -> None:
        member = team.spawn("helper", "listen", listens)
        await team.call("lead", {"say": "one tick"})
        team.message([member.instance], "hurry", by=plan)  # at 2, so it is there at 3
        await team.call("lead", {"say": "another"})
        team.delegate(member, "more", by=plan)
        await team.join()

    episode = played(lead)
    assert heard == [[], ["hurry"], ["more"], None]  # nobody is left who could write: not a hang
    (message,) = acts(episode, Act.MESSAGE)
    assert (message.recipients, message.decided_by, message.modelled_at) == (("helper/0",), 0, 2.0)
    received = [row for row in episode.turns if row["step"] == "receive"]
    assert message.turn_index in received[0]["parents"]


def test_a_summary_begins_a_new_lineage() -> None:
    async def lead(team: Crew, plan: Output) -> None:
        note = await team.call("lead", {"say": "more"})
        team.compact("lead", note)
        await team.call("lead", {"say": note})

    turns = played(lead).turns
    llm = [row for row in turns if row["event"] == Event.LLM]
    assert [row["lineage"] for row in llm] == ["lead#0", "lead#0", "lead#1"]
    assert llm[2]["lineage_parent"] == "lead#0"
    assert json.loads(llm[2]["messages"]) == [{"role": "user", "content": "the plan"}]
    compact = next(row for row in turns if row["act"] == Act.COMPACT)
    assert compact["decided_by"] == llm[1]["turn_index"]
    assert json.loads(compact["act_detail"])["lineage"] == "lead#1"


def test_a_second_call_of_one_play_is_refused() -> None:
    async def lead(team: Crew, plan: Output) -> None:
        team.call("lead", {"say": "one"})
        team.call("lead", {"say": "two"})

    episode = played(lead).episode
    assert "await it first" in episode["error"]


def test_a_team_without_spawning_has_none_of_it() -> None:
    assert ScriptWorkflow("plain", [Role("lead", "{say}")], _nothing).spawning is None
    with pytest.raises(WorkflowError, match="use one of logical"):
        Pace(order="logicl")
    for wrong in ({"max_depth": 0}, {"max_width": True}):
        with pytest.raises(WorkflowError, match="at least 1"):
            Spawning(**wrong)


async def _nothing(team: Any, task: Any) -> None:
    pass


@given(st.integers(0, 10**6), st.sampled_from(["logical", "modelled"]), st.sampled_from([0.0, 0.03]))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_random_trees_have_the_same_rows_in_whatever_order_replies_come(
    seed: int, order: str, fails: float
) -> None:
    trees = Trees(order, seed, fails)
    first = trees.play(1)
    assert first.episode["stop_reason"] in ("finished", "call_failed")
    assert without_times(trees.play(2)) == without_times(first)
    check_accounts(first)


@given(st.integers(0, 10**6), st.sampled_from(["logical", "modelled", "clock"]))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_random_trees_are_played_again_from_their_rows(seed: int, order: str) -> None:
    trees = Trees(order, seed)
    first = trees.play(1)
    before = trees.asked
    again = trees.play(2, BaseEpisode.of(stored(first)))
    # whether the clock decided or not; only calls that were called off have no reply to serve
    but = ("modelled_seconds",) if order == "clock" else ()
    assert content(again, *but) == content(first, *but)
    called_off = sum(row["status"] == Status.CALLED_OFF for row in first.turns)
    assert trees.asked - before <= called_off


def test_a_replay_of_the_clock_is_as_late_after_branches_as_the_play_was() -> None:
    """What a play has used of its seconds goes by the numbers of events, and the end of branches is none."""
    trees = Trees("clock", 1520)
    first = trees.play(1)
    assert content(trees.play(2, BaseEpisode.of(stored(first))), "modelled_seconds") == content(
        first, "modelled_seconds"
    )


def test_the_proof_of_many_traces_counts_what_it_plays() -> None:
    (told,) = random_traces.run("", [0], traces=2)
    assert told.traces == 2
    assert not told.wrong
    assert not told.reached  # two are not ten thousand
    assert told.acts["spawn"] > 0
