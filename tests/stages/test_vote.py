"""A vote of independent answers: who votes for what, and what a majority is worth within a budget."""

from __future__ import annotations

import itertools
import json
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.ballots import BallotBox
from stages.vote import Vote, tally, votes_by_task, votes_table
from workflows.loading import load_workflow
from workflows.testing import play_once
from workflows.tools.code.isolation import Sandbox
from workflows.trajectory import EPISODES, EVALUATION, TASKS, TURNS, rows_to_table

INPUTS: dict[str, dict[str, Any]] = {
    "questions": {"question": "q"},
    "mathematics": {"problem": "p"},
    "code": {
        "problem": "Return n.",
        "fn_name": "same",
        "public_tests": {"kind": "call", "fn_name": "same", "cases": [{"args": [3], "expected": 3}]},
    },
}
REPLIES = {
    "questions": ["<answer>the Paris</answer>", "Paris", "<answer>Rome</answer>", ""],
    "mathematics": ["<answer>1/2</answer>", "so <answer>0.5</answer>", "<answer>2</answer>", ""],
    "code": [
        "<code>\ndef same(n):\n    return n\n</code>",
        "<code>\ndef same(m):\n    return m + 0\n</code>",
        "<code>\ndef same(n):\n    return 7\n</code>",
        "no program",
    ],
}


def cast(task: str, replies: list[str], gold: dict[str, Any]) -> list[str | None]:
    """The ballots of plays of one task by `single`, in the order of the replies; the last one broke."""
    workflow = load_workflow("single", {"task": task})
    turns, episodes = [], []
    for sample, reply in enumerate([*replies, replies[0]]):
        played = play_once(workflow, INPUTS[task], {"solver": reply}, sample=sample)
        turns += [dict(turn) for turn in played.turns]
        status = "ok" if sample < len(replies) else "infra_error"
        episodes.append({**played.episode, "status": status})
    tasks = rows_to_table(
        [{"task_id": "task", "inputs": json.dumps(INPUTS[task]), "gold": json.dumps(gold)}], TASKS
    )
    table = rows_to_table(episodes, EPISODES)
    box = BallotBox("solve", task, Sandbox.of("none"))
    votes = votes_table(table, box.ballots(tasks, rows_to_table(turns, TURNS), table))
    return votes["ballot"].to_pylist()


@pytest.mark.parametrize("task", REPLIES)
def test_equal_answers_cast_equal_ballots_and_no_answer_or_a_broken_play_none(task: str) -> None:
    first, second, third, empty, broken = cast(task, REPLIES[task], {})
    assert first is not None
    assert first == second != third
    assert third is not None
    assert (empty, broken) == (None, None)


def test_ballots_do_not_look_at_the_gold() -> None:
    assert cast("questions", ["a", "b"], {"answers": ["a"]}) == cast("questions", ["a", "b"], {})


def test_programs_without_public_tests_are_equal_where_their_text_is(monkeypatch: Any) -> None:
    monkeypatch.setitem(INPUTS, "code", {"problem": "Return n.", "fn_name": "same"})
    first, second, *_ = cast("code", REPLIES["code"], {})
    assert first != second


def answers(*of: tuple[str | None, float]) -> list[Vote]:
    return [Vote(ballot, value, 10) for ballot, value in of]


def test_the_majority_decides_and_a_tie_is_drawn_evenly() -> None:
    assert tally(answers(("a", 0.0), ("b", 1.0), ("b", 1.0))).value == 1.0
    assert tally(answers(("a", 1.0), ("b", 0.0), ("b", 0.0))).value == 0.0
    assert tally(answers(("a", 1.0), ("b", 0.0))).value == 0.5
    assert tally(answers((None, 0.0), (None, 0.0))).value == 0.0
    assert tally(answers((None, 0.0), (None, 0.0), ("a", 1.0))).value == 1.0


def test_a_budget_of_one_answer_is_a_single_answers_mean_and_of_all_of_them_all() -> None:
    votes = answers(("a", 1.0), ("b", 0.0), ("b", 0.0), ("c", 0.0))
    one = tally(votes, 10, "t")
    assert (one.answers, one.tokens, one.short) == (1.0, 10.0, False)
    assert one.value == pytest.approx(0.25, abs=0.15)
    assert tally(votes, 1, "t").answers == 1.0  # less than any costs: one answers all the same
    assert tally(votes, 40, "t") == tally(votes)
    assert tally(votes, 49, "t").short is False
    assert tally(votes, 50, "t").short is True  # it would have paid for one more


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 20)), min_size=1, max_size=5),
    st.integers(1, 100),
)
def test_a_draw_stays_within_its_budget_and_repeats_exactly(
    given_votes: list[tuple[str | None, int]], tokens: int
) -> None:
    votes = [Vote(ballot, float(ballot == "a"), cost) for ballot, cost in given_votes]
    result = tally(votes, tokens, "seed")
    assert result == tally(votes, tokens, "seed")
    assert result.tokens <= max(tokens, max(v.tokens for v in votes))
    assert 0.0 <= result.value <= 1.0


def test_the_mean_over_draws_is_that_over_all_subsets() -> None:
    votes = answers(("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0), ("b", 0.0))
    subsets = list(itertools.combinations(votes, 3))
    exact = fmean(tally(subset).value for subset in subsets)
    drawn = fmean(tally(votes, 30, f"task {i}").value for i in range(30))
    assert drawn == pytest.approx(exact, abs=0.05)


def test_a_failed_play_is_worth_nothing_and_still_costs() -> None:
    rows = [("t", 0, "a", 1.0, 5), ("t", 1, None, None, 7)]
    evaluation = rows_to_table(
        [
            {"task_id": t, "sample": s, "episode_id": f"{s}", "values": [{"name": "m", "value": value}]}
            for t, s, _, value, _ in rows
        ],
        EVALUATION,
    )
    episodes = rows_to_table(
        [{"task_id": t, "sample": s, "episode_id": f"{s}", "num_response_tokens": n} for t, s, *_, n in rows],
        EPISODES,
    )
    votes = votes_by_task(votes_table(episodes, {"0": "a"}), evaluation, "m")
    assert votes == {"t": [Vote("a", 1.0, 5), Vote(None, 0.0, 7)]}
