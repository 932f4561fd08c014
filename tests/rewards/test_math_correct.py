"""Reward `math_correct`: which answer counts, who shares it, and what the verifier may be paid for."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.format import Format
from rewards.grading.math_pool import GradingError
from rewards.loading import load_reward
from rewards.math_correct import MathCorrect
from workflows.errors import UsageError
from workflows.teams.math import build
from workflows.testing import play_once

STEPS = ("solve", "verify", "refine", "finalise")


def said(
    solved: str = "42", status: str = "correct", refined: str = "42", final: str | None = "42"
) -> dict[str, str]:
    """Replies of the four roles; `final` None leaves the last tag out."""
    return {
        "solver": f"<SOLUTION>s</SOLUTION><ANSWER>{solved}</ANSWER>",
        "verifier": f"<STATUS>{status}</STATUS><ERROR_TYPE>none</ERROR_TYPE><FEEDBACK>f</FEEDBACK>",
        "refiner": f"<REFINED_SOLUTION>s</REFINED_SOLUTION><ANSWER>{refined}</ANSWER>",
        "finaliser": "<FINAL_SOLUTION>s</FINAL_SOLUTION>"
        + ("" if final is None else f"<FINAL_ANSWER>{final}</FINAL_ANSWER>"),
    }


def episode(replies: dict[str, str], answers: Any = ("42",), frozen: str = "") -> PlayedEpisode:
    """A play of the built-in workflow, as a reward sees it."""
    turns = play_once(build(), {"problem": "p"}, replies).turns
    for turn in turns:
        turn["parsed"] = json.loads(turn["parsed"])
        turn["trainable"] = turn["role"] != frozen
    gold = {"answers": list(answers) if isinstance(answers, tuple) else answers}
    return PlayedEpisode("t/0", "ok", {"problem": "p"}, gold, turns)


def reward(replies: dict[str, str], *args: Any, **options: Any) -> list[float | None]:
    return list(MathCorrect(**options)(episode(replies, *args)))


@pytest.mark.parametrize(("final", "outcome"), [
    ("42", 1.0), ("42.0", 1.0), ("$42$", 1.0), (r"\boxed{42}", 1.0), (r"\frac{84}{2}", 1.0), ("x = 42", 1.0),
    ("41", 0.0), ("4, 2", 0.0), ("forty", 0.0), (None, 0.0), ("", 0.0),
])  # fmt: skip
def test_every_turn_gets_whether_the_final_answer_is_right(final: str | None, outcome: float) -> None:
    assert reward(said(final=final)) == [outcome] * 4


def test_any_gold_counts() -> None:
    assert reward(said(final="7"), ("42", "seven", 7)) == [1.0] * 4


def test_only_the_final_answer_counts_unless_the_refiners_may_stand_in() -> None:
    assert reward(said(solved="42", refined="42", final=None)) == [0.0] * 4
    assert reward(said(refined="42", final=None), fall_back=True) == [1.0] * 4
    assert reward(said(refined="42", final="41"), fall_back=True) == [0.0] * 4


def test_a_reply_that_breaks_its_format_may_still_be_right() -> None:
    loose = said() | {
        "finaliser": "First <FINAL_ANSWER>41</FINAL_ANSWER>, no: <final_answer>42</final_answer>"
    }
    assert reward(loose) == [1.0] * 4
    assert reward(said() | {"finaliser": "42"}) == [0.0] * 4


def test_one_malformed_role_takes_nothing_from_the_outcome() -> None:
    played = episode(said() | {"solver": "hm"})
    assert MathCorrect()(played) == [1.0] * 4
    assert Format()(played) == [-1.0, 0.0, 0.0, 0.0]  # so the solver ends at 0


def test_a_split_outcome_adds_up_and_frozen_roles_take_no_part() -> None:
    assert reward(said(), share="split") == [0.25] * 4
    values = MathCorrect(share="split")(episode(said(), frozen="solver"))
    assert values == [None, *[pytest.approx(1 / 3)] * 3]


@pytest.mark.parametrize("final", ["42", "41"])
@pytest.mark.parametrize(("solved", "status", "credit"), [
    ("42", "correct", 1.0), ("42", "incorrect", 0.0), ("42", "uncertain", 0.0),
    ("41", "correct", 0.0), ("41", "incorrect", 1.0), ("41", "uncertain", 0.0),
    ("", "incorrect", 1.0), ("42", "maybe", 0.0), ("41", "maybe", 0.0),
])  # fmt: skip
def test_a_verifier_may_be_paid_for_being_right_itself(
    final: str, solved: str, status: str, credit: float
) -> None:
    outcome = float(final == "42")
    replies = said(solved=solved, status=status, final=final)
    assert reward(replies, verifier_credit=True) == [outcome, credit, outcome, outcome]
    third = pytest.approx(outcome / 3)
    assert reward(replies, verifier_credit=True, share="split") == [third, credit, third, third]
    assert reward(replies)[1] == outcome


def test_a_frozen_verifier_gets_no_credit() -> None:
    values = MathCorrect(verifier_credit=True)(episode(said(), frozen="verifier"))
    assert values == [1.0, None, 1.0, 1.0]


@pytest.mark.parametrize("answers", [[], [" "], ["none"], "42", None])
def test_a_task_without_a_gold_that_can_be_matched_is_no_zero(answers: Any) -> None:
    with pytest.raises(ValueError, match="gold has no"):
        reward(said(), answers)


def test_an_answer_that_can_not_be_compared_is_no_zero_unless_another_gold_settles_it() -> None:
    giant = "9^{9^{9^{9}}}"
    with pytest.raises(GradingError, match="too large"):
        reward(said(final=giant))
    assert reward(said(final=giant), ("5", giant)) == [1.0] * 4


def test_an_episode_that_ended_early_has_no_answer() -> None:
    played = episode(said())
    for length in range(4):
        cut = PlayedEpisode("t/0", "ok", {}, played.gold, played.turns[:length])
        assert MathCorrect(verifier_credit=True)(cut)[:1] == [0.0][:length]


def test_a_step_without_tags_may_give_the_answer() -> None:
    turn = {"step": "solve", "event": "llm", "trainable": True, "status": "ok", "format_valid": True,
            "parsed": "42", "response_text": "<answer>42</answer>"}  # fmt: skip
    single = PlayedEpisode("t/0", "ok", {}, {"answers": ["42"]}, [turn])
    assert MathCorrect(answer_step="solve", final_key="")(single) == [1.0]


@pytest.mark.parametrize(("options", "what"), [
    ({"share": "half"}, "share"), ({"fall_back": "no"}, "fall_back"),
    ({"verifier_credit": 1}, "verifier_credit"), ({"shares": "full"}, "did you mean 'share'"),
])  # fmt: skip
def test_options_that_can_not_work_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        load_reward("math_correct", options)


def test_it_is_a_built_in_that_travels() -> None:
    assert pickle.loads(pickle.dumps(load_reward("math_correct", {"share": "split"}))).share == "split"
