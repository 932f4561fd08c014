"""The player: what is run, in which order it is listed, and what every row says.

The laws at the top are about timing and failure; engines here answer late, out of order, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.engine import Completion, Message, Sampling
from workflows.errors import InfraError, ToolRefusal, UsageError
from workflows.graph import ControlStep, Edge, LlmStep, Step, Tool, ToolStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import JsonKey, Parsed, Tag
from workflows.play import STOP_REASONS, Played, Player, PlayLimits
from workflows.roles import Role, RoleSettings
from workflows.state import State
from workflows.testing import ScriptedEngine, ScriptedModel, play_once
from workflows.trajectory import EPISODES, STATUSES, TURNS, rows_to_table, seed_for

TIMES = {"queued_at", "started_at", "first_token_at", "ended_at"}
SAYER = Role("sayer", "{text}", Tag("a"))
Before = Callable[[Sequence[Message], Sampling], Awaitable[None]]


def without_times(played: Played) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    turns = [{k: v for k, v in row.items() if k not in TIMES} for row in played.turns]
    return turns, {k: v for k, v in played.episode.items() if k not in {"started_at", "seconds"}}


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


def play(
    w: Workflow,
    reply: Callable[[Sequence[Message], Sampling], str] = seeded,
    *,
    before: Before | None = None,
    limits: PlayLimits | None = None,
    role_settings: Mapping[str, RoleSettings] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Played:
    """Play with one engine for all roles."""
    engine = ScriptedEngine(reply, model_id="m", before=before)
    models = (
        ModelMap({"m": Model("m", "m", "scripted")}, dict.fromkeys(w.roles, "m")) if w.roles else NO_MODELS
    )
    player = Player(w, {"m": engine}, models, role_settings or {}, limits or PlayLimits(), 0)
    task = {"task_id": "t", "split": "train", "inputs": inputs or {"question": "?"}}
    return asyncio.run(player.play(task, iteration=0, sample=0))


NO_MODELS = ModelMap({}, {})


def late(order: int) -> Before:
    """Completions come back in an order that `order` alone decides: turns of the event loop, no clock."""
    luck = random.Random(order)

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        for _ in range(luck.randrange(12)):
            await asyncio.sleep(0)

    return before


# --- laws of order ------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Workflow:
    """A connected graph of up to 7 llm steps with conditions, a spread of 0 to 3 branches and a loop."""
    n = draw(st.integers(2, 7))
    names = [f"s{i}" for i in range(n)]
    reads: dict[str, list[str]] = {name: [] for name in names}
    edges = []
    for i in range(1, n):
        for j in sorted(draw(st.sets(st.integers(0, i - 1), min_size=1, max_size=3))):
            reads[names[i]].append(names[j])
            conditional = draw(st.booleans())
            edges.append(Edge(names[j], names[i], valid_output(names[j]) if conditional else None))
    items = draw(st.integers(0, 3))
    spread = draw(st.none() | st.sampled_from(names[1:]))
    steps: list[Step] = [
        say(
            name,
            everything(reads[name]),
            for_each=(lambda state: list(range(items))) if name == spread else None,
        )
        for name in names
    ]
    if draw(st.booleans()) and spread != names[-1]:
        edges.append(Edge(names[-1], names[-1], lambda s: not s[names[-1]].valid, limit=2))
    return workflow(steps, edges)


def valid_output(name: str) -> Callable[[State], bool]:
    def when(state: State) -> bool:
        seen = state.all(name)
        return not seen or seen[-1].valid

    return when


def everything(names: Sequence[str]) -> Callable[[State], str]:
    return lambda state: (
        " ".join(str(o.value) for name in names for o in state.all(name)) + f" {state.branch}"
    )


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(0, 10_000))
def test_rows_do_not_depend_on_which_call_comes_back_first(w: Workflow, order: int) -> None:
    assert without_times(play(w)) == without_times(play(w, before=late(order)))


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(0, 10_000))
def test_a_step_runs_once_a_round_after_all_its_parents_and_lists_them_before_itself(
    w: Workflow, order: int
) -> None:
    played = play(w, before=late(order))
    assert len(set(visits(played))) == len(played.turns)
    assert [t["turn_index"] for t in played.turns] == list(range(len(played.turns)))
    for turn in played.turns:
        for parent in turn["parents"]:
            assert parent < turn["turn_index"]
            assert played.turns[parent]["ended_at"] <= turn["queued_at"]


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_failure_loses_no_turn_that_does_not_depend_on_it(w: Workflow, victim: int, order: int) -> None:
    whole = play(w)
    doomed = whole.turns[victim % len(whole.turns)]
    seed = json.loads(doomed["sampling"])["seed"]

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        await late(order)(messages, sampling)
        if sampling.seed == seed:
            raise InfraError("engine down")

    broken = play(w, before=before, limits=PlayLimits(backoff_seconds=0))
    place = (doomed["step"], doomed["round"], doomed["branch"])
    rows = {v: t for v, t in zip(visits(broken), broken.turns, strict=True)}
    assert rows[place]["status"] == "infra_error"
    assert rows[place]["attempts"] == 3
    assert broken.episode["status"] == "infra_error"
    assert "engine down" in broken.episode["error"]
    for other, row in zip(visits(whole), whole.turns, strict=True):
        if other in rows and other != place:
            assert rows[other]["response_token_ids"] == row["response_token_ids"]
    downstream = {doomed["turn_index"]}
    for turn in whole.turns:
        if downstream & set(turn["parents"]):
            downstream.add(turn["turn_index"])
    assert {v for v in visits(broken)} <= set(visits(whole))
    assert not {visits(whole)[i] for i in downstream} & (set(rows) - {place})


# --- joins, conditions, loops, branches ---------------------------------------------------------


def test_a_join_of_a_short_and_a_long_way_runs_once_after_both() -> None:
    edges = [Edge("a", "d"), Edge("a", "b"), Edge("b", "d")]
    played = play(workflow([say("a"), say("d", lambda s: f"{s['a'].value} {s['b'].value}"), say("b")], edges))
    assert visits(played) == [("a", 0, ""), ("b", 0, ""), ("d", 0, "")]
    assert played.turns[2]["parents"] == [0, 1]


def test_a_branch_that_ends_drops_no_branch_that_is_pending() -> None:
    played = play(workflow([say("a"), say("end"), say("b"), say("end2")], [
        Edge("a", "end"), Edge("a", "b"), Edge("b", "end2"),
    ]))  # fmt: skip
    assert {t["step"] for t in played.turns} == {"a", "end", "b", "end2"}


def test_a_join_runs_if_one_way_to_it_is_taken_and_is_skipped_with_all_that_follows_if_none_is() -> None:
    def routed(taken: set[str]) -> list[str]:
        edges = [
            Edge("a", "b", lambda s: "b" in taken), Edge("a", "c", lambda s: "c" in taken),
            Edge("b", "join"), Edge("c", "join"), Edge("join", "after"), Edge("a", "last"), Edge("after", "last"),
        ]  # fmt: skip
        names = ["a", "b", "c", "join", "after", "last"]
        return [t["step"] for t in play(workflow([note(n) for n in names], edges)).turns]

    assert routed({"b", "c"}) == ["a", "b", "c", "join", "after", "last"]
    assert routed({"c"}) == ["a", "c", "join", "after", "last"]
    assert routed(set()) == ["a", "last"]


@pytest.mark.parametrize(("wanted", "limit", "rounds", "stop"), [
    (0, 3, 1, "finished"), (2, 3, 3, "finished"), (3, 3, 4, "finished"), (9, 3, 4, "loop_limit"),
])  # fmt: skip
def test_a_loop_runs_while_its_condition_holds_and_no_further_than_its_limit(
    wanted: int, limit: int, rounds: int, stop: str
) -> None:
    steps = [note("try", lambda s: s.round), note("judge", lambda s: s["try"].value), note("out")]
    edges = [
        Edge("try", "judge"),
        Edge("judge", "try", lambda s: s["judge"].value < wanted, limit=limit),
        Edge("judge", "out"),
    ]
    played = play(workflow(steps, edges))
    per_round = [(step, r, "") for r in range(rounds) for step in ("try", "judge")]
    assert visits(played) == [*per_round, ("out", 0, "")]
    assert played.episode["stop_reason"] == stop
    assert played.episode["status"] == "ok"


def test_the_edge_that_leaves_a_loop_is_decided_by_its_last_round() -> None:
    steps = [note("try", lambda s: s.round), note("check"), note("early"), note("late")]
    edges = [
        Edge("try", "check"),
        Edge("check", "try", lambda s: s["try"].value < 2, limit=5),
        Edge("try", "early", lambda s: s["try"].value == 0),
        Edge("try", "late", lambda s: s["try"].value == 2),
    ]
    assert [v[0] for v in visits(play(workflow(steps, edges)))][-2:] == ["check", "late"]


def test_an_exit_from_the_middle_of_a_loop_ends_it_and_later_steps_see_the_last_full_round() -> None:
    steps = [note("ask", lambda s: s.round), note("answer", lambda s: f"answer {s.round}"),
             note("end", lambda s: s["answer"].value)]  # fmt: skip
    edges = [
        Edge("ask", "answer", lambda s: s["ask"].value < 2),
        Edge("answer", "ask", limit=9),
        Edge("ask", "end"),
    ]
    played = play(workflow(steps, edges))
    assert json.loads(played.turns[-1]["parsed"]) == "answer 1"
    assert played.episode["stop_reason"] == "finished"


def test_a_loop_in_a_loop_has_its_own_limit_in_each_outer_round() -> None:
    steps = [note("outer"), note("inner"), note("judge")]
    edges = [
        Edge("outer", "inner"),
        Edge("inner", "inner", lambda s: True, limit=1),
        Edge("inner", "judge"),
        Edge("judge", "outer", lambda s: True, limit=2),
    ]
    order = [v[0] for v in visits(play(workflow(steps, edges)))]
    assert order == ["outer", "inner", "inner", "judge"] * 3


def test_a_later_round_reads_the_round_before() -> None:
    steps = [note("draft", lambda s: (s["critique"].value if s.ran("critique") else "") + "d"),
             note("critique", lambda s: s["draft"].value + "c")]  # fmt: skip
    played = play(
        workflow(steps, [Edge("draft", "critique"), Edge("critique", "draft", lambda s: True, limit=2)])
    )
    assert json.loads(played.turns[-1]["parsed"]) == "dcdcdc"
    assert [t["parents"] for t in played.turns] == [[], [0], [1], [2], [3], [4]]


def spread(
    items: Callable[[State], Any], *more: Step, edges: Sequence[Edge] = (), first: Step | None = None
) -> Workflow:
    steps = [first or note("plan", lambda s: ["x", "y", "z"]), note("look", lambda s: s.item, for_each=items)]
    return workflow([*steps, *more], [Edge("plan", "look"), *edges])


def test_branches_go_on_without_each_other_and_a_join_waits_for_all() -> None:
    w = spread(
        lambda s: s["plan"].value,
        say("read", lambda s: s["look"].value, same_branch=True),
        say("check", lambda s: s["read"].text, same_branch=True),
        note("join", lambda s: [o.text for o in s.all("check")]),
        edges=[Edge("look", "read"), Edge("read", "check"), Edge("check", "join")],
    )
    asked: list[str] = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        text = messages[-1]["content"]
        asked.append(text)
        if text == "x":  # the first branch reads last: the others must not wait for it
            while len(asked) < 5:
                await asyncio.sleep(0)

    played = play(w, lambda messages, sampling: messages[-1]["content"] + "!", before=before)
    assert asked == ["x", "y", "z", "y!", "z!", "x!"]
    assert json.loads(played.turns[-1]["parsed"]) == ["x!!", "y!!", "z!!"]
    assert [v for v in visits(played) if v[0] == "read"] == [("read", 0, str(i)) for i in range(3)]
    assert played.turns[-1]["parents"] == [t["turn_index"] for t in named(played, "check")]


def test_what_a_branch_item_was_made_from_is_a_parent_of_what_uses_the_item() -> None:
    played = play(spread(lambda s: s["plan"].value))
    assert [t["parents"] for t in named(played, "look")] == [[0]] * 3


def test_no_items_skip_the_branches_and_a_join_with_another_edge_still_runs() -> None:
    join = note("join", lambda s: len(s.all("look")))
    edges = [Edge("look", "join")]
    assert [v[0] for v in visits(play(spread(lambda s: [], join, edges=edges)))] == ["plan"]
    played = play(spread(lambda s: [], join, edges=[*edges, Edge("plan", "join")]))
    assert [t["parsed"] for t in named(played, "join")] == ["0"]


def test_conditions_in_branches_choose_for_their_branch_alone() -> None:
    w = spread(
        lambda s: s["plan"].value,
        note("read", lambda s: s.item, same_branch=True),
        note("join", lambda s: [o.value for o in s.all("read")]),
        edges=[Edge("look", "read", lambda s: s["look"].value != "y"), Edge("read", "join")],
    )
    assert json.loads(play(w).turns[-1]["parsed"]) == ["x", "z"]


def test_a_loop_inside_a_branch_turns_for_that_branch_alone() -> None:
    w = spread(
        lambda s: [0, 1, 2],
        note("read", lambda s: s.round, same_branch=True),
        note("join", lambda s: [o.value for o in s.all("read")]),
        edges=[
            Edge("look", "read"),
            Edge("read", "read", lambda s: s["read"].value < s.item, limit=5),
            Edge("read", "join"),
        ],
    )
    played = play(w)
    assert json.loads(played.turns[-1]["parsed"]) == [0, 1, 2]
    assert len(named(played, "read")) == 1 + 2 + 3


def test_a_loop_around_branches_spreads_anew_and_joins_the_latest_spread_only() -> None:
    w = spread(
        lambda s: list(range(3 - s.round)),
        note("join", lambda s: len(s.all("look"))),
        edges=[Edge("look", "join"), Edge("join", "plan", lambda s: True, limit=2)],
    )
    assert [t["parsed"] for t in named(play(w), "join")] == ["3", "2", "1"]


# --- errors in the workflow's own code ----------------------------------------------------------


def boom(state: State) -> Any:
    raise ValueError("bad code")


@pytest.mark.parametrize(("steps", "edges", "cause"), [
    ([say("a", boom)], [], "input 'text' of step 'a': ValueError: bad code"),
    ([say("a", "task.nothing")], [], "input 'text' of step 'a': path 'task.nothing' leads nowhere"),
    ([note("a", boom)], [], "compute of step 'a': ValueError: bad code"),
    ([note("a", lambda s: {1, 2})], [], "compute of step 'a': the computed value is not JSON"),
    ([note("a"), note("b")], [Edge("a", "b", boom)], "the condition of edge 'a' → 'b' after step 'a': ValueError"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: 1)], "returned 1, expected True or False"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: s["b"].valid)], "'b' is not before step 'a'"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: s["aa"].valid)], "no step 'aa'; did you mean 'a'"),
    ([note("a", for_each=boom)], [], "for_each of step 'a': ValueError: bad code"),
    ([note("a", for_each=lambda s: "xyz")], [], "it returned a str, expected a list"),
    ([note("a", lambda s: s.item)], [], "item is known only inside"),
    ([note("a"), note("b", for_each=lambda s: [1, 2]), note("c", lambda s: s["b"].value)],
     [Edge("a", "b"), Edge("b", "c")], "use state.all('b')"),
])  # fmt: skip
def test_an_exception_in_a_callable_ends_the_episode_with_a_cause_that_names_it(
    steps: list[Step], edges: list[Edge], cause: str
) -> None:
    played = play(workflow(steps, edges))
    assert cause in played.episode["error"]
    assert played.episode["status"] == "infra_error"  # never trained on, never scored
    assert played.episode["stop_reason"] == "workflow_error"


def test_a_failing_condition_is_not_a_false_one_and_keeps_the_sibling() -> None:
    w = workflow([note("a"), note("b"), note("c")], [Edge("a", "b", boom), Edge("a", "c")])
    played = play(w)
    assert [v[0] for v in visits(played)] == ["a", "c"]
    assert played.episode["status"] == "infra_error"


def test_a_parser_that_raises_is_named_and_its_tokens_are_kept() -> None:
    class Bad:
        def parse(self, text: str) -> Parsed:
            raise KeyError("oops")

    w = Workflow("w", [Role("sayer", "{text}", Bad())], [say("a")])
    played = play(w)
    assert played.episode["stop_reason"] == "workflow_error"
    assert "KeyError: 'oops' (test_play.py:" in played.turns[0]["status_detail"]
    assert played.turns[0]["response_token_ids"]


def test_gold_never_reaches_a_workflow() -> None:
    w = workflow([say("a")])
    player = Player(w, {"m": ScriptedEngine(seeded)}, MAP, {}, PlayLimits(), 0)
    task = {"task_id": "t", "inputs": {"question": "?"}, "gold": {"answers": ["x"]}}
    with pytest.raises(UsageError, match="gold"):
        asyncio.run(player.play(task, iteration=0, sample=0))


MAP = ModelMap({"m": Model("m", "b", "scripted")}, {"sayer": "m"})


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


def test_a_programming_error_in_an_engine_is_not_asked_again() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        raise TypeError("wrong argument")

    played = play(workflow([say("a")]), before=before)
    assert (played.turns[0]["attempts"], played.turns[0]["status"]) == (1, "infra_error")
    assert "TypeError: wrong argument (test_play.py:" in played.episode["error"]


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("limits", "stop"), [
    (PlayLimits(call_timeout_seconds=0.01), "call_failed"),
    (PlayLimits(episode_timeout_seconds=0.05), "episode_timeout"),
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
        ("malformed", "no <a>", "null", False)
    ] * 2
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")


def test_a_reply_at_the_token_limit_is_truncated_whether_or_not_its_format_was_complete() -> None:
    limit = {"sayer": RoleSettings(max_response_tokens=12)}
    replies = {"whole": "<a>x</a> and so on and so on", "cut": "<a>and so on and so on"}
    for name, text in replies.items():
        turn = play(workflow([say("a")]), lambda m, s, text=text: text, role_settings=limit).turns[0]
        assert (turn["status"], turn["finish_reason"]) == ("truncated", "length"), name
        assert len(turn["response_token_ids"]) == 12
        assert turn["format_valid"] == (name == "whole")


# --- tools --------------------------------------------------------------------------------------


def with_tool(tool: Tool, **limits: Any) -> Played:
    steps: list[Step] = [
        ToolStep("find", "search", lambda s: {"query": s.task["question"]}),
        note("after", lambda s: [s["find"].value, s["find"].valid]),
    ]
    w = workflow(steps, [Edge("find", "after")], {"search": tool})
    return play(w, limits=PlayLimits(backoff_seconds=0, **limits))


async def echo(request: Any) -> Any:
    return {"found": [request["query"]]}


def test_a_tool_turn_keeps_request_and_result() -> None:
    for tool in (echo, lambda request: {"found": [request["query"]]}):
        played = with_tool(tool)
        turn = played.turns[0]
        assert (turn["event"], turn["tool"], turn["status"]) == ("tool", "search", "ok")
        assert (turn["tool_request"], turn["tool_result"]) == ('{"query":"?"}', '{"found":["?"]}')
        assert json.loads(played.turns[1]["parsed"]) == [{"found": ["?"]}, True]


def test_what_a_tool_refuses_is_the_policys_doing_and_the_workflow_goes_on() -> None:
    async def refuse(request: Any) -> Any:
        raise ToolRefusal("empty query")

    played = with_tool(refuse)
    assert (played.turns[0]["status"], played.turns[0]["status_detail"]) == ("tool_error", "empty query")
    assert played.turns[0]["attempts"] == 1
    assert json.loads(played.turns[1]["parsed"]) == [None, False]
    assert played.episode["status"] == "ok"


def failing(error: Exception) -> Tool:
    async def tool(request: Any) -> Any:
        raise error

    return tool


@pytest.mark.parametrize(("tool", "status", "attempts", "cause"), [
    (failing(InfraError("index gone")), "infra_error", 3, "index gone"),
    (failing(KeyError("k")), "infra_error", 1, "KeyError: 'k'"),
    (failing(TimeoutError("its own")), "infra_error", 1, "TimeoutError: its own"),
    (never, "timeout", 1, "no reply within 0.01 s"),
    (lambda request: {1}, "infra_error", 1, "the result of tool 'search' is not JSON"),
    (lambda request: float("nan"), "infra_error", 1, "is not JSON"),
])  # fmt: skip
def test_what_a_tool_can_not_do_is_not_the_policys_doing(
    tool: Tool, status: str, attempts: int, cause: str
) -> None:
    played = with_tool(tool, tool_timeout_seconds=0.01 if status == "timeout" else 60)
    assert (played.turns[0]["status"], played.turns[0]["attempts"]) == (status, attempts)
    assert [v[0] for v in visits(played)] == ["find"]
    assert played.episode["status"] == status
    assert cause in played.episode["error"]
    assert "step 'find'" in played.episode["error"]


def test_a_tool_is_started_once_whatever_the_number_of_plays_at_a_time() -> None:
    class Index:
        starts = 0

        async def start(self) -> None:
            await asyncio.sleep(0)
            self.starts += 1

        async def __call__(self, request: Any) -> Any:
            return self.starts

    async def run() -> list[Played]:
        w = workflow([ToolStep("find", "index", lambda s: None)], tools={"index": Index()})
        player = Player(w, {}, NO_MODELS, {}, PlayLimits(), 0)
        task = {"task_id": "t", "inputs": {}}
        return await asyncio.gather(*(player.play(task, iteration=0, sample=i) for i in range(4)))

    assert [p.turns[0]["tool_result"] for p in asyncio.run(run())] == ["1"] * 4


# --- rows ---------------------------------------------------------------------------------------


def team(roles: int = 3) -> Workflow:
    speakers = [Role(f"r{i}", "{text}", Tag("a")) for i in range(roles)]
    steps = [
        LlmStep(f"s{i}", f"r{i}", {"text": "task.question" if i == 0 else f"s{i - 1}"}) for i in range(roles)
    ]
    return Workflow("team", speakers, steps, [Edge(f"s{i}", f"s{i + 1}") for i in range(roles - 1)])


def play_team(groups: Mapping[str, str], **versions: int) -> tuple[Played, dict[str, ScriptedEngine]]:
    ids = sorted(set(groups.values()))
    engines = {m: ScriptedEngine(seeded, model_id=m, base_id=f"base {m}") for m in ids}
    for model_id, version in versions.items():
        engines[model_id].policy_version = version
    models = ModelMap({m: Model(m, f"base {m}", "scripted", trainable=m != "frozen") for m in ids}, groups)
    player = Player(team(), engines, models, {}, PlayLimits(), 7)
    task = {"task_id": "t", "split": "dev", "inputs": {"question": "who?"}}
    return asyncio.run(player.play(task, iteration=3, sample=2)), engines


REGIMES = [
    {"r0": "m", "r1": "m", "r2": "m"},
    {"r0": "m", "r1": "n", "r2": "frozen"},
    {"r0": "m", "r1": "m", "r2": "n"},
]


def test_sharing_regimes_give_the_same_turns_by_other_models() -> None:
    by_model = {"model_id", "base_id", "trainable", "team_version"}
    played = [without_times(play_team(groups)[0]) for groups in REGIMES]
    for (turns, episode), groups in zip(played, REGIMES, strict=True):
        assert [t["model_id"] for t in turns] == [groups[f"r{i}"] for i in range(3)]
        assert [t["trainable"] for t in turns] == [groups[f"r{i}"] != "frozen" for i in range(3)]
        assert episode == played[0][1]
        for turn, first in zip(turns, played[0][0], strict=True):
            assert {k: v for k, v in turn.items() if k not in by_model} == {
                k: v for k, v in first.items() if k not in by_model
            }


def test_rows_hold_exactly_what_the_engine_took_and_returned() -> None:
    played, engines = play_team(REGIMES[0])
    tokenizer = ScriptedModel(seeded)
    for turn, completion in zip(played.turns, engines["m"].completions, strict=True):
        assert turn["response_token_ids"] == completion.token_ids
        assert turn["behaviour_logprobs"] == completion.logprobs
        assert turn["prompt_token_ids"] == tokenizer.render(json.loads(turn["messages"]))
        assert turn["num_prompt_tokens"] == len(turn["prompt_token_ids"])
        assert turn["response_text"] == tokenizer.decode(completion.token_ids)
        assert turn["logprobs_mode"] == "processed_logprobs"
    episode = played.episode
    assert episode["num_turns"] == 3
    assert episode["num_prompt_tokens"] == sum(t["num_prompt_tokens"] for t in played.turns)
    assert episode["num_response_tokens"] == sum(len(c.token_ids) for c in engines["m"].completions)


def test_a_row_says_where_it_stands_and_how_it_was_sampled() -> None:
    turn = play_team(REGIMES[0])[0].turns[1]
    assert turn["episode_id"] == "00003/t/2"
    assert (turn["iteration"], turn["split"], turn["task_id"], turn["sample"]) == (3, "dev", "t", 2)
    assert (turn["event"], turn["step"], turn["role"], turn["origin"]) == ("llm", "s1", "r1", "sampled")
    assert json.loads(turn["sampling"]) == {
        "max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": [],
        "seed": seed_for(7, 3, "t", 2, "s1", 0, ""),
    }  # fmt: skip
    assert 0 <= turn["queued_at"] <= turn["ended_at"]


def test_the_version_of_a_row_is_the_one_that_was_asked_not_the_one_at_its_return() -> None:
    played, engines = play_team(REGIMES[1], m=4, n=2)
    assert [t["policy_version"] for t in played.turns] == [4, 2, 0]
    assert [json.loads(t["team_version"]) for t in played.turns] == [{"m": 4, "n": 2, "frozen": 0}] * 3

    engine = ScriptedEngine(seeded, model_id="m")

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        engine.policy_version += 1  # new weights while the reply is under way

    engine._before = before
    player = Player(workflow([say("a")]), {"m": engine}, MAP, {}, PlayLimits(), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert (played.turns[0]["policy_version"], played.turns[0]["team_version"]) == (0, '{"m":0}')


def test_equal_contexts_have_equal_hashes_and_others_do_not() -> None:
    w = workflow([say("a"), say("b"), say("c", lambda s: "other")], [Edge("a", "b"), Edge("b", "c")])
    one, same, other = (t["context_hash"] for t in play(w).turns)
    assert one == same != other


def test_samples_of_a_group_differ_and_the_same_sample_repeats() -> None:
    texts = [
        play_once(team(), {"question": "?"}, seeded, sample=i).turns[0]["response_text"] for i in (0, 1, 0)
    ]
    assert texts[0] == texts[2] != texts[1]


def test_all_rows_fit_their_schemas() -> None:
    for w in (team(), spread(lambda s: ["x"]), workflow([note("a", boom)])):
        played = play(w)
        rows_to_table(played.turns, TURNS)
        rows_to_table([played.episode], EPISODES)
        assert all(set(row) == set(TURNS.names) for row in played.turns)
        assert set(played.episode) == set(EPISODES.names)
        assert played.episode["stop_reason"] in STOP_REASONS
        assert all(row["status"] in STATUSES for row in played.turns)


def test_lone_surrogates_reach_no_engine_and_no_file() -> None:
    steps = [note("a", lambda s: "\udc80"), say("b", lambda s: s["a"].value)]
    played = play(workflow(steps, [Edge("a", "b")]), inputs={"question": "\ud800"})
    assert played.episode["status"] == "ok"
    rows_to_table(played.turns, TURNS)


# --- limits -------------------------------------------------------------------------------------


def lister() -> Workflow:
    role = Role("sayer", "{passages}\nQuestion: {question}", JsonKey("q"), trim=("passages",))
    inputs = {"passages": lambda s: ["p" * 30] * 10, "question": "task.question"}
    return Workflow("w", [role], [LlmStep("a", "sayer", inputs)])


def test_a_long_prompt_loses_passages_says_so_and_keeps_its_question() -> None:
    room = {"sayer": RoleSettings(max_prompt_tokens=200)}
    turn = play(lister(), role_settings=room).turns[0]
    assert 150 < turn["num_prompt_tokens"] <= 200
    kept = json.loads(turn["messages"])[-1]["content"].count("p" * 30)
    assert json.loads(turn["cut"]) == {"passages": 10 - kept}
    assert json.loads(turn["messages"])[-1]["content"].endswith("Question: ?")


def test_a_prompt_that_can_not_fit_is_never_asked() -> None:
    played = play(lister(), role_settings={"sayer": RoleSettings(max_prompt_tokens=20)})
    turn = played.turns[0]
    assert turn["status"] == played.episode["status"] == "infra_error"
    assert turn["status_detail"] == f"prompt of {turn['num_prompt_tokens']} tokens exceeds 20 after trimming"
    assert turn["prompt_token_ids"] is None
    assert turn["attempts"] == 0


def test_an_episode_stops_at_its_number_of_turns() -> None:
    w = workflow([note("a")], [Edge("a", "a", lambda s: True, limit=100)])
    played = play(w, limits=PlayLimits(max_turns=5))
    assert len(played.turns) == 5
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")


@pytest.mark.parametrize("values", [
    {"max_turns": 0}, {"call_attempts": 0}, {"call_timeout_seconds": float("inf")}, {"tool_timeout_seconds": 0},
    {"episode_timeout_seconds": float("nan")}, {"backoff_seconds": -1},
])  # fmt: skip
def test_limits_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        PlayLimits(**values)


@pytest.mark.parametrize(("models", "role_settings", "message"), [
    (ModelMap({"m": Model("m", "m", "x")}, {"seyer": "m"}), {}, "did you mean 'sayer'"),
    (NO_MODELS, {}, "role 'sayer' of workflow 'w' has no model"),
    (ModelMap({"n": Model("n", "n", "x")}, {"sayer": "n"}), {}, "model 'n' has no engine; engines: m"),
    (MAP, {"seyer": RoleSettings()}, "the settings names role 'seyer'"),
    (MAP, {"sayer": RoleSettings(max_response_tokens=9000)}, "leaves no room for a prompt in the 8192 tokens"),
])  # fmt: skip
def test_a_player_whose_parts_do_not_fit_each_other_is_refused(
    models: ModelMap, role_settings: dict[str, RoleSettings], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Player(workflow([say("a")]), {"m": ScriptedEngine(seeded)}, models, role_settings, PlayLimits(), 0)
