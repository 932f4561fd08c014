"""Deltas of F1 by round on hand-made episodes: every edge of the rule. Gold is Paris."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.by_round import gains
from rewards.f1_by_round import F1ByRound

F1 = {"Paris": 1.0, "Paris France": 2 / 3, "Rome": 0.0}


def turn(step: str, round: int, parsed: Any, **other: Any) -> dict[str, Any]:
    return {
        "step": step,
        "role": step,
        "round": round,
        "event": "llm",
        "trainable": True,
        "status": "ok",
        "parsed": parsed,
        "format_valid": True,
        "response_text": "",
    } | other


def plan(answer: str, **other: Any) -> dict[str, Any]:
    return turn("plan", 0, {"steps": [], "answer": answer}, **other)


def answer(round: int, text: str | None, **other: Any) -> dict[str, Any]:
    return turn("answer", round, text, **other)


def search(round: int, query: str = "q", **other: Any) -> dict[str, Any]:
    return turn("search", round, {"action": "search" if query else "end", "query": query}, **other)


def work(round: int) -> list[dict[str, Any]]:
    return [
        turn("retrieve", round, None, event="tool", trainable=False, format_valid=None),
        turn("summarise", round, "evidence"),
        turn("update", round, {"action": "add", "id": "t1"}),
    ]


def score(turns: list[dict[str, Any]], reward: F1ByRound | None = None) -> list[float | None]:
    played = PlayedEpisode("t/0", "ok", {"question": "?"}, {"answers": ["Lutetia", "Paris"]}, turns)
    values = (reward or F1ByRound())(played)
    assert len(values) == len(turns)
    return [v for v, t in zip(values, turns, strict=True) if t["event"] == "llm"]


@pytest.mark.parametrize("first", F1)
@pytest.mark.parametrize("second", F1)
def test_a_round_is_paid_the_difference_between_its_two_answers(first: str, second: str) -> None:
    turns = [plan("Rome"), answer(0, first), search(0), *work(0), answer(1, second)]
    delta = pytest.approx(F1[second] - F1[first])
    assert score(turns) == [0.0, F1[first], delta, delta, delta, F1[second]]


def test_the_plan_is_paid_for_its_own_answer() -> None:
    assert score([plan("Paris"), answer(0, "Rome"), search(0, "")]) == [1.0, 0.0, 0.0]


def test_without_an_answer_before_the_next_one_counts_whole() -> None:
    turns = [plan("Rome"), search(0), *work(0), answer(1, "Paris France")]
    assert score(turns) == [0.0, *[F1["Paris France"]] * 4]


def test_a_missing_answer_pays_nothing_and_the_next_round_is_compared_with_the_last_one() -> None:
    turns = [answer(0, "Paris France"), search(0), *work(0), search(1), *work(1), answer(2, "Paris")]
    delta = pytest.approx(1 / 3)
    assert score(turns) == [F1["Paris France"], 0.0, 0.0, 0.0, delta, delta, delta, 1.0]


def test_an_episode_without_any_answer_pays_nothing() -> None:
    assert score([plan("Rome"), search(0), *work(0)]) == [0.0] * 4


def test_an_end_is_paid_nothing_and_what_follows_it_is_paid_as_ever() -> None:
    for end in (
        search(0, ""),
        search(0, "", format_valid=False, status="malformed"),
        search(0) | {"parsed": None},
    ):
        turns = [
            answer(0, "Rome"),
            end,
            *work(0),
            answer(1, "Paris"),
            search(1),
            *work(1),
            answer(2, "Paris"),
        ]
        assert score(turns) == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_an_answer_without_its_format_is_read_or_not_by_rule() -> None:
    broken = answer(1, "Paris", format_valid=False, status="malformed", response_text="Paris!\nOr so.")
    turns = [answer(0, "Rome"), search(0), *work(0), broken]
    assert score(turns) == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert score(turns, F1ByRound(malformed="zero")) == [0.0] * 5
    unread = plan("Paris", format_valid=False)
    assert score([unread], F1ByRound(malformed="zero")) == [0.0]
    assert score([unread]) == [1.0]


def test_a_split_change_is_divided_among_those_who_made_it() -> None:
    turns = [answer(0, "Rome"), search(0), *work(0), answer(1, "Paris")]
    third = pytest.approx(1 / 3)
    assert score(turns, F1ByRound(share="split")) == [0.0, third, third, third, 1.0]
    ended = [answer(0, "Rome"), search(0, ""), *work(0), answer(1, "Paris")]
    assert score(ended, F1ByRound(share="split")) == [0.0, 0.0, 0.5, 0.5, 1.0]
    turns[1]["trainable"] = False
    assert score(turns, F1ByRound(share="split")) == [0.0, None, 0.5, 0.5, 1.0]


def test_the_mode_is_that_of_the_grader() -> None:
    assert score([answer(0, "the Par.is")], F1ByRound(mode="official_squad")) == [1.0]
    assert score([answer(0, "the Par.is")]) == [0.0]


def test_a_task_without_gold_and_a_plan_of_another_shape_are_no_zeros() -> None:
    with pytest.raises(ValueError, match="no list of answers"):
        F1ByRound()(PlayedEpisode("t/0", "ok", {}, {}, [plan("Paris")]))
    with pytest.raises(ValueError, match="'answer'"):
        score([turn("plan", 0, "Paris")])


def test_other_steps_get_no_number() -> None:
    assert score([turn("critic", 0, "x"), answer(0, "Paris")]) == [None, 1.0]


def test_what_updates_are_paid_adds_up_to_the_last_answer_minus_the_first() -> None:
    luck = random.Random(5)
    for _ in range(50):
        turns = [answer(0, luck.choice(list(F1)))]
        for round in range(luck.randint(0, 4)):
            turns += [search(round, luck.choice(["q", ""])), *work(round)]
            if luck.random() < 0.8:
                turns.append(answer(round + 1, luck.choice(list(F1))))
        played = PlayedEpisode("t/0", "ok", {}, {"answers": ["Paris"]}, turns)
        values = F1ByRound()(played)
        paid = sum(v for v, t in zip(values, turns, strict=True) if t["step"] == "update" and v is not None)
        answers = [F1[t["parsed"]] for t in turns if t["step"] == "answer"]
        assert paid == pytest.approx(answers[-1] - answers[0])


def test_gains_add_up_whichever_rounds_are_missing() -> None:
    assert gains({}) == {}
    assert gains({3: 0.5, 0: 0.25, 7: 0.75}) == {0: 0.25, 3: 0.25, 7: 0.25}
    assert gains({1: 0.5}, first=0.25) == {1: 0.25}
