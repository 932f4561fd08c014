"""The answer that a reply in words states."""

from __future__ import annotations

import contextlib

import pytest

from rewards.grading.math import MAX_ANSWER_CHARACTERS, GradingError, equal
from rewards.grading.math_extract import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer> or <FINAL_ANSWER> 5 </FINAL_ANSWER>", "5"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"<answer>so \boxed{7}</answer> \boxed{8}", "7"),
        (r"\boxed{3} <answer> </answer>", "3"),
        ("16 - 7 = 9\n#### 1,234\n", "1,234"),
        ("Answer: 3\nThe final answer is **42**", "42**"),
        ("answer: 3\nanswer: 4 apples", "4 apples"),
        (r"\boxed{2}, answer: 3", "2"),
        ("the answer was never found", None),
        (r"\boxed{1 and no end", None),
        ("<answer>5", None),
        ("", None),
        (r"\boxed{\boxed{5}} {never \{ closed", "5"),
        (r"\boxed{\boxed{5}} \boxed{never \{ closed", None),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"{\boxed{3}} } {", "3"),
        ("<answer>a <answer>b</answer>", "b"),
        ("<answer>1</final_answer> <final_answer>2</answer></final_answer>", "2</answer>"),
        (f"<answer>{'9' * (MAX_ANSWER_CHARACTERS + 1)}</answer>", None),
    ],
)
def test_the_last_statement_of_the_strongest_kind_is_the_answer(text, answer):
    assert extract_answer(text) == answer


def test_without_a_statement_the_fallback_says_what_is_taken():
    assert [extract_answer("so 3 and then 4.5", f) for f in ("none", "whole", "number")] == [
        None,
        "so 3 and then 4.5",
        "4.5",
    ]
    assert extract_answer("two\nlines 7", "whole") is None
    assert extract_answer("no digits", "number") is None


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "<answer>",
        r"\boxed{1} ",
        "answer: ",
        "answer is x  ",
        "#### ",
        "\n",
        "1,",
        "{",
        r"\text{",
        "5 cm ",
        "$",
    ],
)
def test_rambling_replies_are_read_in_linear_time(piece):
    """So long that anything quadratic would meet the time limit of the tests."""
    extract_answer(piece * (2_000_000 // len(piece)), "number")
    rambling = piece * (MAX_ANSWER_CHARACTERS // len(piece))
    with contextlib.suppress(GradingError):
        equal(rambling, "5")


def test_failed_extraction_on_either_side_never_matches():
    nothing = extract_answer("I don't know")
    assert nothing is None
    for other in (None, "", "None", r"\emptyset", "0", str(nothing)):
        assert not equal(nothing, other).correct
        assert not equal(other, nothing).correct
