"""Answers to questions that look alike and are, or look alike and are not, in the strict mode."""

from __future__ import annotations

import pytest

from rewards.grading import qa

SAME = [
    ("twenty-one", "twenty one"),
    ("Jean-Paul Sartre", "Jean Paul Sartre"),
    ("AC/DC", "AC DC"),
    ("well\u2011known", "well known"),
    ("Covid-19", "COVID 19"),
    ("a 5-inch nail", "5 inch nail"),
    ("The A-Team", "A Team"),
    ("Paris\ufe0f", "Paris"),
    ("Pa\u034fris", "Paris"),
    ("Paris\x00", "Paris"),
    ("\x00Paris \x01", "Paris"),
    ("Pa\u00adris", "Paris"),
    ("\u3164Paris\U000e0100", "Paris"),
    ("CO₂", "CO2"),
    ("H₂O", "h2o"),
    ("World War Ⅱ", "World War II"),
    ("m²", "m2"),
    ("½", "1/2"),
    ("2½", "2 1/2"),
    ("ﬁne", "fine"),
    ("１２", "12"),
    ("①", "1"),
    ("10²", "10^2"),
    ("A", "A"),
]
OTHERS = [
    ("10²", "102"),
    ("2½", "21/2"),
    ("2①", "21"),
    ("10⁻⁵", "105"),
    ("-5", "5"),
    ("2019-20", "201920"),
    ("24/7", "247"),
    ("3-4", "34"),
    ("1/2", "12"),
    ("3.5", "35"),
    ("C++", "C"),
    ("AC/DC", "ACDC"),
    ("twenty-one", "twentyone"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_spellings_of_one_answer_are_one(one, other):
    for prediction, gold in ((one, other), (other, one)):
        assert qa.exact_match(prediction, [gold]) == 1.0
        assert qa.f1(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_what_only_looks_alike_is_not_one(one, other):
    for prediction, gold in ((one, other), (other, one)):
        assert qa.exact_match(prediction, [gold]) == 0.0


@pytest.mark.parametrize("mode", ["official_hotpot", "official_squad"])
def test_the_official_modes_keep_the_scripts_answers(mode):
    assert qa.exact_match("twenty-one", ["twentyone"], mode) == 1.0
    assert qa.exact_match("twenty-one", ["twenty one"], mode) == 0.0
    assert qa.exact_match("CO₂", ["CO2"], mode) == 0.0
