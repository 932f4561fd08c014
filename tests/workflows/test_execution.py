"""Running order: joins, conditions, loops, branches, and errors in a workflow's own code.

The laws at the top hold for any graph. Engines answer late, out of order, or not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.small_plays import named, note, play, say, visits, workflow
from workflows.engine import Message, Sampling
from workflows.errors import InfraError
from workflows.graph import Edge, LlmStep, Step, Workflow
from workflows.parsers import Tag
from workflows.playing.attempts import PlayLimits
from workflows.roles import Role
from workflows.state import State
from workflows.testing import late, without_times


def test_a_path_into_a_reply_without_a_value_is_an_error_not_a_blank() -> None:
    one, two = Role("one", "{q}", Tag("a")), Role("two", "{draft}")
    for source, reason in (("s1", "workflow_error"), (lambda state: state["s1"].text, "finished")):
        w = Workflow(
            "w",
            [one, two],
            [LlmStep("s1", "one", {"q": "task.question"}), LlmStep("s2", "two", {"draft": source})],
            [Edge("s1", "s2")],
        )
        played = play(w, lambda messages, sampling: "no tag")
        assert played.episode["stop_reason"] == reason
        if reason == "workflow_error":
            assert "'s1' has no value" in played.episode["error"]


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
    inside: set[str] = set()  # steps that run in the branches of `spread`
    steps: list[Step] = []
    for name in names:
        follows = bool(reads[name]) and inside.issuperset(reads[name]) and draw(st.booleans())
        options = (
            {"for_each": lambda state: list(range(items))} if name == spread else {"same_branch": follows}
        )
        if follows or name == spread:
            inside.add(name)
        steps.append(say(name, everything(reads[name]), **options))
    if draw(st.booleans()):
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


@settings(max_examples=150)
@given(graphs(), st.integers(0, 10_000))
def test_rows_do_not_depend_on_which_call_comes_back_first(w: Workflow, order: int) -> None:
    assert without_times(play(w)) == without_times(play(w, before=late(order)))


@settings(max_examples=100)
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


@settings(max_examples=60)
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
    rows = dict(zip(visits(broken), broken.turns, strict=True))
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
    assert set(visits(broken)) <= set(visits(whole))
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
            Edge("a", "b", lambda s: "b" in taken), Edge("a", "c", lambda s: "c" in taken), Edge("a", "last"),
            Edge("b", "join"), Edge("c", "join"), Edge("join", "after"), Edge("after", "last"),
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


def test_a_parallel_step_of_the_same_loop_is_seen_as_it_was_a_round_before() -> None:
    steps = [
        note("begin"),
        note("slow"),
        note("fast", lambda s: s.round),  # over before `look` starts, and still not before it
        note("look", lambda s: s["fast"].value if s.ran("fast") else None),
        note("end"),
    ]
    edges = [
        Edge("begin", "slow"), Edge("begin", "fast"), Edge("slow", "look"), Edge("look", "end"),
        Edge("fast", "end"), Edge("end", "begin", lambda s: True, limit=2),
    ]  # fmt: skip
    assert [t["parsed"] for t in named(play(workflow(steps, edges)), "look")] == ["null", "0", "1"]


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


def test_a_join_can_spread_again() -> None:
    w = spread(
        lambda s: s["plan"].value,
        note("pair", lambda s: s.item * 2, for_each=lambda s: [o.value for o in s.all("look")][1:]),
        note("join", lambda s: [o.value for o in s.all("pair")]),
        edges=[Edge("look", "pair"), Edge("pair", "join")],
    )
    assert json.loads(play(w).turns[-1]["parsed"]) == ["yy", "zz"]


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


def test_a_branch_that_earlier_spreads_did_not_have_is_of_the_round_of_the_loop_around_it() -> None:
    w = spread(
        lambda s: list(range(1 + s.round)),
        note("join", lambda s: len(s.all("look"))),
        edges=[Edge("look", "join"), Edge("join", "plan", lambda s: True, limit=2)],
    )
    assert [t["round"] for t in named(play(w), "look")] == [0, 1, 1, 2, 2, 2]


# --- errors in the workflow's own code ----------------------------------------------------------


def boom(state: State) -> Any:
    raise ValueError("bad code")


@pytest.mark.parametrize(("steps", "edges", "cause"), [
    ([say("a", boom)], [], "input 'text' of step 'a': ValueError: bad code"),
    ([say("a", "task.nothing")], [], "input 'text' of step 'a': path 'task.nothing' leads nowhere"),
    ([note("a", boom)], [], "compute of step 'a': ValueError: bad code"),
    ([note("a", lambda s: {1, 2})], [], "compute of step 'a': the computed value is not JSON"),
    ([note("a"), note("b")], [Edge("a", "b", boom)], "the condition of edge 'a' → 'b' after step 'a'"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: 1)], "returned 1, expected True or False"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: s["b"].valid)], "'b' is not before step 'a'"),
    ([note("a"), note("b")], [Edge("a", "b", lambda s: s["aa"].valid)], "no step 'aa' (did you mean 'a'?)"),
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
