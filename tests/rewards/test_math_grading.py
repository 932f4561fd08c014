"""Math answers: labelled pairs by kind, and laws."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.grading.math import GradingError, equal
from rewards.grading.math_extract import extract_answer
from tests.support.math_pairs import CASES, PAIRS


@pytest.mark.parametrize("kind", PAIRS)
def test_pairs_of_every_kind_get_the_right_verdict_in_both_orders(kind):
    cases = [(a, b, same) for k, a, b, same in CASES if k == kind]
    wrong = [
        (x, y, same, verdict)
        for a, b, same in cases
        for x, y in ((a, b), (b, a))
        if (verdict := equal(x, y)).correct is not same
    ]
    assert wrong == []


def test_the_guards_correct_verdicts_of_the_bare_library(record_property):
    """As the library is meant to be called: gold and prediction parsed from LaTeX."""
    from math_verify import parse, verify

    def bare(prediction: str, gold: str) -> bool:
        return verify(parse(f"${gold}$"), parse(f"${prediction}$"))

    wrong = [(kind, a, b) for kind, a, b, same in CASES if bare(a, b) is not same]
    record_property("wrong_without_guards", len(wrong))
    assert len(CASES) >= 150
    assert len(wrong) > 20
    assert {"thousands", "units, money, degrees", "names"} <= {kind for kind, _, _ in wrong}


@pytest.mark.parametrize(
    "answer", sorted({x for kind, a, b, _ in CASES if kind != "no answer" for x in (a, b)})
)
def test_every_answer_equals_itself_and_never_nothing(answer):
    assert equal(answer, answer).correct
    for nothing in ("", None, r"\text{}", "none"):
        assert not equal(nothing, answer).correct
        assert not equal(answer, nothing).correct


@given(st.fractions(-(10**16), 10**16, max_denominator=99))
def test_a_number_is_the_same_in_every_spelling(number):
    above, below = number.numerator, number.denominator
    spellings = [rf"\frac{{{above}}}{{{below}}}", f"{above}/{below}", rf"x = \dfrac{{{above}}}{{{below}}}"]
    if 10**12 % below == 0:
        decimal = f"{number * 10**12 // 1:+014d}"
        spellings.append(f"{decimal[:-12]}.{decimal[-12:]}")
    if below == 1:
        spellings += [f"{above:,}", f"{above}.0", rf"{above}\text{{ km}}", f"${above}$"]
    for one in spellings:
        for other in spellings:
            assert equal(one, other).correct, (one, other)
        assert not equal(one, f"{above + below}/{below}").correct


@given(st.text(max_size=40))
def test_any_text_gets_a_verdict_or_a_stated_error(text):
    for one, other in ((text, "5"), ("5", text)):
        with contextlib.suppress(GradingError):  # stated; anything else fails
            assert equal(one, other).reason
    assert not equal(text, "").correct


@pytest.mark.skipif(
    "CADRE_TEST_DATA" not in os.environ, reason="CADRE_TEST_DATA names no folder of data sets"
)
def test_gsm8k_golds_equal_themselves_and_nothing_near():
    folder = pathlib.Path(os.environ["CADRE_TEST_DATA"]) / "math"
    golds = [
        extract_answer(json.loads(line)["answer"])
        for name in ("gsm8k_test.jsonl", "gsm8k_train.jsonl")
        for line in (folder / name).read_text("utf-8").splitlines()
    ]
    assert len(golds) >= 1000
    assert None not in golds
    for gold in golds:
        assert equal(gold, gold).correct
        assert equal(f"x = {gold}.00", gold).correct
        assert not equal(f"{gold}1", gold).correct
        assert not equal(None, gold).correct
