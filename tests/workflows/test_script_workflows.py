"""Workflows as async functions: names, order and parents; the same laws as for graphs."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.script_plays import SAYER, Task, look, names, play, say, script
from workflows.draw import mermaid, text_lines
from workflows.engine import Message, Sampling
from workflows.errors import InfraError, UsageError, WorkflowError
from workflows.loading import load_workflow
from workflows.playing.attempts import PlayLimits
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.team import Team
from workflows.testing import late, without_times
from workflows.trajectory import EPISODES, TURNS, rows_to_table

# A plan is a list of what a team does in turn: "say", "two" (two calls at the same time), "look", "note",
# or a list of plans, played in branches.
plans = st.recursive(
    st.sampled_from(["say", "two", "look", "note"]).map(lambda what: [what]),
    lambda inner: st.lists(
        inner | st.lists(inner, min_size=1, max_size=3).map(lambda b: [b]), max_size=4
    ).map(lambda parts: list(itertools.chain.from_iterable(parts))),
    max_leaves=8,
)


async def follow(team: Team, plan: Sequence[Any]) -> list[Output]:
    """Each step reads what this team has so far; a team that branched reads all of its branches."""
    have: list[Output] = []
    for what in plan:
        if isinstance(what, list):
            have = [o for outputs in await team.each(what, follow) for o in outputs]
        elif what == "two":
            have = list(await asyncio.gather(*(say(team, [o.best for o in have], reads=have) for _ in "12")))
        elif what == "say":
            have = [await say(team, have)]
        elif what == "look":
            have = [await team.tool("look", "x", reads=have)]
        else:
            have = [team.note("note", team.path, reads=have)]
    return have


def from_plan(plan: Sequence[Any]) -> Any:
    async def run(team: Team, task: Task) -> None:
        await follow(team, plan)

    return run


@settings(max_examples=60)
@given(plans, st.integers(0, 10_000))
def test_rows_do_not_depend_on_which_call_comes_back_first(plan: list[Any], order: int) -> None:
    run = from_plan(plan)
    assert without_times(play(run)) == without_times(play(run, before=late(order)))


@settings(max_examples=40)
@given(plans, st.integers(0, 10_000))
def test_a_turn_stands_after_its_parents_and_starts_when_they_are_over(plan: list[Any], order: int) -> None:
    played = play(from_plan(plan), before=late(order))
    assert len(set(names(played))) == len(played.turns)
    assert [t["turn_index"] for t in played.turns] == list(range(len(played.turns)))
    for turn in played.turns:
        for parent in turn["parents"]:
            assert parent < turn["turn_index"]
            assert played.turns[parent]["ended_at"] <= turn["queued_at"]
    rows_to_table(played.turns, TURNS)
    rows_to_table([played.episode], EPISODES)


@settings(max_examples=40)
@given(plans, st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_failure_changes_no_other_turn(plan: list[Any], victim: int, order: int) -> None:
    whole = play(from_plan(plan))
    asked = [t for t in whole.turns if t["event"] == "llm"]
    if not asked:
        return
    doomed = asked[victim % len(asked)]
    seed = json.loads(doomed["sampling"])["seed"]

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        await late(order)(messages, sampling)
        if sampling.seed == seed:
            raise InfraError("engine down")

    broken = play(from_plan(plan), before=before, limits=PlayLimits(backoff_seconds=0))
    assert (broken.episode["status"], broken.episode["stop_reason"]) == ("infra_error", "call_failed")
    assert "engine down" in broken.episode["error"]
    kept = dict(zip(names(broken), broken.turns, strict=True))
    place = (doomed["step"], doomed["round"], doomed["branch"])
    assert kept[place]["status"] == "infra_error"
    for name, row in zip(names(whole), whole.turns, strict=True):
        if name in kept and name != place:
            assert kept[name]["response_token_ids"] == row["response_token_ids"]
            assert kept[name]["status"] == row["status"]


# --- names, order, parents ----------------------------------------------------------------------


def test_rounds_count_the_calls_of_a_step_in_a_branch() -> None:
    async def run(team: Team, task: Task) -> None:
        async def twice(branch: Team, item: int) -> None:
            for _ in range(item):
                await say(branch, "x")

        await say(team, "x")
        for _ in range(2):
            await team.each([1, 2], twice)
        await say(team, "x")

    assert sorted(names(play(run))) == [
        ("say", 0, ""), ("say", 0, "0"), ("say", 0, "1"), ("say", 1, ""), ("say", 1, "0"), ("say", 1, "1"),
        ("say", 2, "1"), ("say", 3, "1"),
    ]  # fmt: skip


def test_what_follows_branches_stands_after_all_of_them_and_branches_in_branches_too() -> None:
    async def leaf(team: Team, item: Any) -> None:
        await say(team, "x")

    async def inner(team: Team, item: Any) -> None:
        await team.each("ab", leaf)

    async def run(team: Team, task: Task) -> None:
        team.note("note", "first")
        await team.each("ab", inner)
        team.note("note", "last")

    assert [v[2] for v in names(play(run))] == ["", "0.0", "0.1", "1.0", "1.1", ""]


def test_parents_are_the_outputs_among_the_inputs_and_those_in_reads() -> None:
    async def run(team: Team, task: Task) -> None:
        one, two = await asyncio.gather(say(team, "x"), say(team, "y"))
        found = await team.tool("look", {"deep": [one]}, reads=[two])
        await say(team, "nothing was read")
        team.note("note", found)

    played = play(run)
    assert [(t["step"], t["parents"]) for t in played.turns] == [
        ("say", []), ("say", []), ("look", [0, 1]), ("say", []), ("note", [2]),
    ]  # fmt: skip
    assert json.loads(played.turns[4]["parsed"]) == {"found": json.loads(played.turns[2]["tool_request"])}


def test_calls_run_at_the_same_time_and_a_seed_belongs_to_a_place() -> None:
    waiting: list[str] = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        waiting.append(messages[-1]["content"])
        while len(waiting) < 3:
            await asyncio.sleep(0)

    async def run(team: Team, task: Task) -> None:
        async def work(branch: Team, text: str) -> int:
            await say(branch, text)
            return branch.seed("x")

        seeds = await team.each(["a", "b"], work)
        assert len({team.seed("x"), *seeds}) == 3

    async def all_three(team: Team, task: Task) -> None:
        other = say(team, "c")
        await run(team, task)
        await other

    assert play(all_three, before=before).episode["status"] == "ok"
    assert sorted(waiting) == ["a", "b", "c"]


# --- declarations -------------------------------------------------------------------------------


async def empty(team: Team, task: Task) -> None:
    pass


def plain(team: Team, task: Task) -> None:
    pass


@pytest.mark.parametrize(("options", "message"), [
    ({"run": plain}, "async function"),
    ({"roles": [SAYER, SAYER]}, "role 'sayer' is declared twice"),
    ({"tools": {"sayer": look}}, "role or tool 'sayer' is declared twice"),
    ({"tools": {"look": dict}}, "give an object that can be called"),
    ({"roles": []}, "no role, tool or step"),
    ({"steps": {"say": "sayre"}}, "did you mean 'sayer'"),
    ({"steps": {"note": None}}, "'sayer' acts in no step"),
    ({"steps": {"a step": "sayer"}}, "letters"),
    ({"answer_step": "sayr"}, "did you mean 'sayer'"),
    ({"tools": {"look": look}, "answer_step": "look"}, "no parsed value"),
])  # fmt: skip
def test_a_declaration_that_can_not_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        ScriptWorkflow(**{"name": "s", "roles": [SAYER], "run": empty, **options})


def test_a_function_is_drawn_by_its_steps() -> None:
    workflow = script(empty, answer_step="sum")
    assert text_lines(workflow) == [
        f"{empty.__module__}:empty decides in Python which step comes next:",
        "say   role sayer", "sum   role sayer, answer", "look  tool look", "note  note",
    ]  # fmt: skip
    drawn = mermaid(workflow)
    assert drawn.count("function -.-> step_") == 4
    assert 'step_look[/"look<br/>tool look"/]' in drawn


def test_tools_can_be_replaced_by_stand_ins() -> None:
    async def run(team: Team, task: Task) -> None:
        team.note("note", await team.tool("look", "x"))

    played = play(run, tools={"look": lambda request: "stand-in"})
    assert [t["parsed"] for t in played.turns] == [None, '"stand-in"']
    with pytest.raises(UsageError, match="did you mean 'look'"):
        script(run).with_tools({"lok": look})


def test_the_built_in_debate_is_a_function_that_check_can_draw() -> None:
    workflow = load_workflow("debate", {})
    assert isinstance(workflow, ScriptWorkflow)
    assert text_lines(workflow)[0].startswith("workflows.teams.debate:")
