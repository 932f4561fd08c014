"""`math_correct`: exactness as an option, and final answers that were cut off."""

from __future__ import annotations

import json

import pytest

from rewards.base import PlayedEpisode
from rewards.math_correct import MathCorrect
from workflows.errors import UsageError
from workflows.teams.math import build
from workflows.testing import play_once


def paid(final: str, gold: str, **options: bool) -> float | None:
    replies = {
        "solver": "<SOLUTION>s</SOLUTION><ANSWER>1</ANSWER>",
        "verifier": "<STATUS>correct</STATUS><ERROR_TYPE>none</ERROR_TYPE><FEEDBACK>f</FEEDBACK>",
        "refiner": "<REFINED_SOLUTION>s</REFINED_SOLUTION><ANSWER>1</ANSWER>",
        "finaliser": f"<FINAL_SOLUTION>s</FINAL_SOLUTION><FINAL_ANSWER>{final}</FINAL_ANSWER>",
    }
    turns = play_once(build(), {"problem": "p"}, replies).turns
    for turn in turns:
        turn["parsed"] = json.loads(turn["parsed"])
    return MathCorrect(**options)(PlayedEpisode("t/0", "ok", {"problem": "p"}, {"answers": [gold]}, turns))[
        -1
    ]


def test_exactness_is_an_option_that_is_off():
    assert paid("0.3333333", r"\frac13") == 1.0
    assert paid("0.3333333", r"\frac13", exact=True) == 0.0
    assert paid("0.25", r"\frac14", exact=True) == 1.0
    with pytest.raises(UsageError, match="exact must be true or false, got 'yes'"):
        MathCorrect(exact="yes")


@pytest.mark.parametrize(
    "final", [r"\boxed{7", r"\boxed{7}, it is \boxed{8", r"It is\n\boxed{7} or \boxed{8}"]
)
def test_a_box_that_was_cut_off_and_two_guesses_are_paid_nothing(final):
    assert paid(final, "7") == 0.0
    assert paid(final, "8") == 0.0


def test_an_answer_of_several_lines_is_still_compared_whole():
    assert paid("7\n", "7") == 1.0
    assert paid("7\nor 8", "7") == 0.0
