"""Rewards for the answer, the format and the length, on played episodes."""

import json
import math

import pytest

from rewards.exact_match import ExactMatch
from rewards.format import Format
from rewards.grading.qa import MODES
from rewards.length import Length
from rewards.scoring.reasons import kind_of
from rewards.token_f1 import TokenF1
from tests.support.scored_turns import llm, only, parts, score, task, tool


def test_every_trainable_turn_shares_the_outcome_and_answers_for_its_own_format() -> None:
    rows = score(
        [llm(0, "plan", ["q"]), tool(1), llm(2, "reader", None), llm(3, "answer", "Paris France")],
    )
    outcome = 2 / 3  # one of two words, all of the gold
    assert parts(rows["t/0", 0]) == {"token_f1": pytest.approx(outcome), "format": 0.0}
    assert parts(rows["t/0", 2]) == {"token_f1": pytest.approx(outcome), "format": -3.0}
    assert rows["t/0", 0]["reward"] == pytest.approx(2.0 * outcome)
    assert rows["t/0", 2]["reward"] == pytest.approx(2.0 * outcome + 0.5 * -3.0)
    assert rows["t/0", 1]["reward"] is None
    assert rows["t/0", 1]["reward_parts"] == []
    assert math.copysign(1, parts(rows["t/0", 3])["format"]) == 1  # 0, not -0


def test_a_split_outcome_adds_up_to_the_whole() -> None:
    turns = [llm(0, "plan", ["q"]), tool(1), llm(2, "judge", "x", trainable=False), llm(3), llm(4)]
    rows = score(turns, rewards=only(TokenF1(share="split")))
    shares = [r["reward"] for r in rows.values() if r["reward"] is not None]
    assert shares == [pytest.approx(1 / 3)] * 3


def test_the_last_answer_counts_by_turn_index_and_not_by_row_order() -> None:
    turns = [llm(5, parsed="Paris"), llm(0, parsed="Rome")]
    assert score(turns, rewards=only(TokenF1()))["t/0", 0]["reward"] == 1.0


@pytest.mark.parametrize(
    "last",
    [
        llm(1, parsed=None, status="malformed", response_text="Paris"),
        llm(1, parsed="Paris", format_valid=False, status="malformed"),
        llm(1, parsed="Paris", status="truncated"),
        llm(1, step="reader", parsed="Paris"),
    ],
    ids=["nothing parsed", "broken format", "cut off", "no answer step"],
)
def test_no_valid_answer_earns_nothing_where_formats_are_strict(last) -> None:
    rows = score([llm(0, "plan", ["q"]), last], rewards=only(TokenF1(malformed="zero")))
    assert [r["reward"] for r in rows.values()] == [0.0, 0.0]


def test_an_answer_without_its_format_is_scored_as_it_stands() -> None:
    last = llm(1, parsed=None, status="malformed", format_valid=False, response_text="It is Paris")
    rows = score([llm(0, "plan", ["q"]), last], rewards=only(TokenF1()))
    assert [r["reward"] for r in rows.values()] == [0.5, 0.5]


def test_the_best_of_several_golds_counts_and_numbers_are_answers() -> None:
    tasks = [task(answers=["Lutetia", "7", "the city of Paris"])]
    assert score([llm(0, parsed="city of Paris")], tasks=tasks)["t/0", 0]["reward"] == 2.0
    assert score([llm(0, parsed=7)], tasks=tasks)["t/0", 0]["reward"] == 2.0


@pytest.mark.parametrize("answers", [[], ["  "], "Paris"])
def test_a_task_without_usable_gold_is_no_zero(answers) -> None:
    gold = json.dumps({"answers": answers})
    rows = score([llm(0)], tasks=[task() | {"gold": gold}])
    assert rows["t/0", 0]["reward"] is None
    assert kind_of(rows["t/0", 0]["no_reward_reason"]) == "reward 'token_f1' failed"


def test_an_answer_that_is_no_text_is_no_zero() -> None:
    for parsed in (["Paris"], {"answer": "Paris"}, {"answer": True}):
        reason = score([llm(0, parsed=parsed)])["t/0", 0]["no_reward_reason"]
        assert "parser return the answer alone" in reason


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("gold", "said", "earns"),
    [
        (True, True, 1.0),
        (True, "yes", 1.0),
        (True, "True.", 1.0),
        (True, False, 0.0),
        (True, "no", 0.0),
        (False, "no", 1.0),
        (False, "False", 1.0),
        (False, True, 0.0),
    ],
)
def test_truth_values_are_golds_and_answers(mode, gold, said, earns) -> None:
    """As BoolQ and StrategyQA have them: true is yes, too, however the reply is parsed."""
    for reward in (TokenF1(mode=mode), ExactMatch(mode=mode)):
        rows = score([llm(0, parsed=said)], tasks=[task(answers=[gold])], rewards=only(reward))
        assert rows["t/0", 0]["reward"] == earns


def test_a_word_beside_a_truth_value_earns_no_part_of_it() -> None:
    rows = score([llm(0, parsed="true or false")], tasks=[task(answers=[True])], rewards=only(TokenF1()))
    assert rows["t/0", 0]["reward"] == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("golds", [["A"], ["The"], ["A", "a rose"]])
def test_a_gold_that_the_published_normaliser_drops_is_graded_strictly(mode, golds) -> None:
    """The script can't tell the choice A from no answer; a team that says nothing must not earn it."""
    for reward in (TokenF1(mode=mode), ExactMatch(mode=mode)):

        def earned(said: str, reward=reward) -> float | None:
            rows = score([llm(0, parsed=said)], tasks=[task(answers=golds)], rewards=only(reward))
            return rows["t/0", 0]["reward"]

        assert earned(golds[0]) == 1.0
        assert [earned(wrong) for wrong in ("B", "", "!", "an")] == [0.0] * 4


def test_truncated_turns_break_their_format_and_a_role_without_format_breaks_none() -> None:
    turns = [llm(0, "plan", ["q"], status="truncated"), llm(1, format_valid=None)]
    rows = score(turns, rewards=only(Format()))
    assert [r["reward"] for r in rows.values()] == [-1.0, 0.0]


def test_what_a_broken_turn_was_read_as_is_scored_or_nothing() -> None:
    lenient = llm(0, parsed="Paris", format_valid=False, status="malformed", response_text="Paris, I guess")
    assert score([lenient], rewards=only(TokenF1()))["t/0", 0]["reward"] == 1.0
    assert score([lenient], rewards=only(TokenF1(malformed="zero")))["t/0", 0]["reward"] == 0.0
    unread = lenient | {"parsed": None}
    assert score([unread], rewards=only(TokenF1()))["t/0", 0]["reward"] == 0.5


def test_an_answer_may_stand_under_a_key() -> None:
    plan = llm(0, "plan", {"steps": [], "answer": "Paris"})
    assert score([plan], rewards=only(TokenF1("plan", "answer")))["t/0", 0]["reward"] == 1.0
    for parsed in ({"steps": []}, "Paris", {"answer": ["Paris"]}):
        row = score([llm(0, "plan", parsed)], rewards=only(TokenF1("plan", "answer")))["t/0", 0]
        assert kind_of(row["no_reward_reason"]) == "reward 'mine' failed"


@pytest.mark.parametrize(
    ("answer", "golds", "mode", "expected"),
    [
        ("the city of Paris", ["Rome", "city of Paris"], "strict", 1.0),
        ("It is Paris", ["Paris"], "strict", 0.0),
        ("3.5", ["35"], "strict", 0.0),
        ("3.5", ["35"], "official_squad", 1.0),
        (7, ["7"], "strict", 1.0),
    ],
)
def test_an_exact_match_is_all_or_nothing(answer, golds, mode, expected) -> None:
    turns = [llm(0, "plan", ["q"]), tool(1), llm(2, parsed=answer)]
    tasks = [task(answers=golds)]
    assert score(turns, tasks=tasks, rewards=only(ExactMatch(mode=mode)))["t/0", 0]["reward"] == expected
    halves = score(turns, tasks=tasks, rewards=only(ExactMatch(mode=mode, share="split")))
    assert [halves["t/0", i]["reward"] for i in (0, 2)] == [expected / 2] * 2


def test_a_format_may_be_a_bonus_instead_of_a_penalty() -> None:
    turns = [llm(0, "plan", ["q"]), llm(1, "reader", None), llm(2, "reader", "x", status="truncated")]
    reward = Format({"plan": 0.2, "reader": 0.1}, valid=1, invalid=0)
    assert [r["reward"] for r in score(turns, rewards=only(reward)).values()] == [0.2, 0.0, 0.0]


def test_tokens_beyond_the_budget_cost() -> None:
    turns = [llm(i, num_response_tokens=n) for i, n in enumerate((3, 10, 11, 40))] + [tool(4)]
    rows = score(turns, rewards=only(Length(cost=0.5, budget=10, most=4)))
    assert [r["reward"] for r in rows.values()] == [0.0, 0.0, -0.5, -4.0, None]
    assert math.copysign(1, rows["t/0", 0]["reward"]) == 1  # 0, not -0
    assert score(turns, rewards=only(Length(cost=0.5)))["t/0", 0]["reward"] == -1.5
    unknown = score([llm(0, num_response_tokens=None)], rewards=only(Length()))["t/0", 0]
    assert "no count of response tokens" in unknown["no_reward_reason"]
