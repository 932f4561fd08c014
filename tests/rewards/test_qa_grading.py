"""Grading laws, and the answers on which published graders go wrong."""

import json
import os
import pathlib
import random
import re
import string
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.grading.qa import MODES, exact_match, f1, usable

GOLDS = [
    "Paris",
    "the Beatles",
    "The Who",
    "The The",
    "A",
    "!",
    "—",
    "yes",
    "No",
    "noanswer",
    "3.5",
    "-5",
    "−40 °C",
    "1,000",
    "$1,234,567.89",
    "1,2",
    "10:30 a.m.",
    "C++",
    "C#",
    "AC/DC",
    "AT&T",
    "50%",
    "U.S.A.",
    "O’Brien",
    "“Heroes”",
    unicodedata.normalize("NFD", "São Paulo"),
    "Straße",
    "İstanbul",
    "北京市",
    "東京タワー",
    "서울",
    "Москва",
    "القاهرة",
    "नई दिल्ली",
    "E. coli",
    "rock 'n' roll",
    "Vitamin A",
    "H₂O",
    "10²",
    "🦆",
    "**bold**",
    "snake_case",
    "Mark Masons' Hall",
]


@pytest.mark.parametrize("gold", GOLDS)
def test_every_usable_gold_matches_itself_and_nothing_empty(gold: str) -> None:
    assert usable(gold)
    assert f1(gold, [gold]) == exact_match(gold, [gold]) == 1.0
    for empty in ("", " ", "\n\t", "\u200b"):
        assert f1(empty, [gold]) == exact_match(empty, [gold]) == 0.0


def test_two_different_golds_do_not_match_exactly() -> None:
    matches = [(a, b) for a in GOLDS for b in GOLDS if a != b and exact_match(a, [b])]
    assert matches == []


def test_an_empty_gold_is_unusable_and_matches_nothing() -> None:
    for empty in ("", "  ", "\u200b"):
        assert not usable(empty)
        for prediction in ("", "anything", "the"):
            assert f1(prediction, [empty]) == exact_match(prediction, [empty]) == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_no_gold_at_all_is_an_error_and_not_a_score(mode) -> None:
    for grade in (f1, exact_match):
        with pytest.raises(ValueError, match="no gold"):
            grade("Paris", [], mode)
        with pytest.raises(TypeError, match="list"):
            grade("P", "Paris", mode)
        with pytest.raises(ValueError, match="unknown grading mode"):
            grade("Paris", ["Paris"], "official")


@given(st.text(max_size=30))
def test_strict_laws_hold_for_any_text(text: str) -> None:
    assert usable(text) == (f1(text, [text]) == 1.0) == (exact_match(text, [text]) == 1.0)
    assert 0.0 <= f1(text, ["Paris in France"]) <= 1.0
    assert f1(text, ["a b", "c"]) == max(f1(text, ["a b"]), f1(text, ["c"]))


@given(st.text("abc the-5.,'", max_size=12), st.text("abc the-5.,'", max_size=12))
def test_f1_is_symmetric_and_an_exact_match_is_a_full_score(one: str, other: str) -> None:
    for mode in MODES:
        assert f1(one, [other], mode) == pytest.approx(f1(other, [one], mode), abs=1e-15)
        assert exact_match(one, [other], mode) == exact_match(other, [one], mode)
    if exact_match(one, [other]):
        assert f1(one, [other]) == 1.0


# prediction, gold, strict F1, official HotpotQA F1, official SQuAD F1
CASES = [
    ("yes it is", "yes", 0, 0, 0.5),
    ("yes", "no", 0, 0, 0),
    ("Yes.", "yes", 1, 1, 1),
    ("The", "A", 0, 0, 1),
    ("", "", 0, 0, 1),
    ("", "Paris", 0, 0, 0),
    ("vitamin C", "A", 0, 0, 0),
    ("vitamin C", "Vitamin A", 0.5, 2 / 3, 2 / 3),
    ("“Paris”", "Paris", 1, 0, 0),
    ("O’Brien", "O'Brien", 1, 0, 0),
    (unicodedata.normalize("NFD", "São Paulo"), "São Paulo", 1, 0.5, 0.5),
    ("北京", "北京市", 0.8, 0, 0),
    ("3.5", "35", 0, 1, 1),
    ("-5", "5", 0, 1, 1),
    ("−5", "-5", 1, 0, 0),
    ("C++", "C", 0, 1, 1),
    ("10:30", "1030", 0, 1, 1),
    ("1,000", "1000", 1, 1, 1),
    ("1,2", "12", 0, 1, 1),
    ("50%", "50", 0, 1, 1),
    ("$5", "5", 0, 1, 1),
    ("U.S.", "US", 1, 1, 1),
    ("the Eiffel Tower.", "Eiffel Tower", 1, 1, 1),
    ("**Paris**", "Paris", 1, 1, 1),
    ("Paris,France", "Paris, France", 1, 0, 0),
    ("It is (Paris)", "Paris", 0.5, 0.5, 0.5),
    ("!", "!", 1, 0, 1),
    ("Paris Paris", "Paris", 2 / 3, 2 / 3, 2 / 3),
    ("ＡＣ／ＤＣ", "ac/dc", 1, 0, 0),
    ("STRASSE", "Straße", 1, 0, 0),
]


@pytest.mark.parametrize(("prediction", "gold", "strict", "hotpot", "squad"), CASES)
def test_known_cases_in_every_mode(prediction, gold, strict, hotpot, squad) -> None:
    scores = [f1(prediction, [gold], m) for m in ("strict", "official_hotpot", "official_squad")]
    assert scores == [pytest.approx(s, abs=1e-15) for s in (strict, hotpot, squad)]


# prediction, gold, exact match in the modes strict, official_hotpot, official_squad
EXACT = [
    ("The Paris!", "paris", 1, 1, 1),  # both sides are normalised
    ("Paris France", "Paris", 0, 0, 0),  # no F1: half an answer is none
    ("Paris", "Paris France", 0, 0, 0),
    ("France Paris", "Paris France", 0, 0, 0),  # order counts
    ("yes it is", "yes", 0, 0, 0),
    ("The", "A", 0, 1, 1),
    ("", "", 0, 1, 1),
    ("", "!", 0, 1, 1),
    ("The The", "The The", 1, 1, 1),
    ("vitamin C", "A", 0, 0, 0),
    ("3.5", "35", 0, 1, 1),
    ("1,2", "12", 0, 1, 1),
    ("“Paris”", "Paris", 1, 0, 0),
    ("die Welt", "Welt", 0, 0, 0),  # English articles only
    ("A Coruña", "A Coruña", 1, 1, 1),
]


@pytest.mark.parametrize(("prediction", "gold", "strict", "hotpot", "squad"), EXACT)
def test_exact_match_in_every_mode(prediction, gold, strict, hotpot, squad) -> None:
    modes = ("strict", "official_hotpot", "official_squad")
    assert [exact_match(prediction, [gold], m) for m in modes] == [strict, hotpot, squad]
    assert [exact_match(prediction, ["nothing of it", gold], m) for m in modes] == [strict, hotpot, squad]


def test_the_best_gold_counts_in_both_scores() -> None:
    for mode in MODES:
        assert f1("city of Paris", ["Rome", "Paris city", "Paris"], mode) == pytest.approx(0.8)
        assert exact_match("city of Paris", ["Rome", "the city of Paris."], mode) == 1


@given(
    st.lists(
        st.sampled_from(["a", "the", "an", "yes", "no", "cat", "dog", "C++", "-5", "…", "“x”", ",", " "])
    ),
    st.lists(st.sampled_from(["the", "yes", "noanswer", "cat", "dog", "C", "5", "!", "“x”"])),
)
def test_official_modes_are_the_published_arithmetic(one: list[str], other: list[str]) -> None:
    prediction, gold = " ".join(one), " ".join(other)

    def words(text: str) -> list[str]:
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        return [w for w in kept.split() if w not in ("a", "an", "the")]

    p, g = words(prediction), words(gold)
    rest, same = list(g), 0
    for word in p:
        if word in rest:
            rest.remove(word)
            same += 1
    plain = 0.0 if not same else 2 * (same / len(p)) * (same / len(g)) / (same / len(p) + same / len(g))
    closed = {"yes", "no", "noanswer"}
    clash = " ".join(p) != " ".join(g) and (" ".join(p) in closed or " ".join(g) in closed)
    assert f1(prediction, [gold], "official_hotpot") == (0.0 if clash else plain)
    assert f1(prediction, [gold], "official_squad") == (float(p == g) if not p or not g else plain)
    for mode in ("official_hotpot", "official_squad"):
        assert exact_match(prediction, [gold], mode) == float(p == g)


def _published(prediction: str, gold: str) -> tuple[float, float, float]:
    """HotpotQA F1, SQuAD F1 and exact match, written anew from the formulas of the two papers."""
    one, other = (
        " ".join(
            re.sub(
                r"\b(a|an|the)\b", " ", re.sub(f"[{re.escape(string.punctuation)}]", "", t.lower())
            ).split()
        )
        for t in (prediction, gold)
    )
    p, g = one.split(), other.split()
    same = sum(min(p.count(word), g.count(word)) for word in set(p))
    plain = 2 * (same / len(p)) * (same / len(g)) / ((same / len(p)) + (same / len(g))) if same else 0.0
    clash = one != other and {one, other} & {"yes", "no", "noanswer"}
    return (0.0 if clash else plain, plain if p and g else float(p == g), float(one == other))


texts = st.text(max_size=20) | st.text("aAnthe THE-5.,'\u00a0\u2028“é_yesno", max_size=24)


@settings(max_examples=400)
@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_official_modes_are_bit_equal_to_the_scripts_on_any_text(prediction: str, golds: list[str]) -> None:
    hotpot, squad, exact = (
        max(scores) for scores in zip(*(_published(prediction, g) for g in golds), strict=True)
    )
    assert f1(prediction, golds, "official_hotpot") == hotpot
    assert f1(prediction, golds, "official_squad") == squad
    for mode in ("official_hotpot", "official_squad"):
        assert exact_match(prediction, golds, mode) == exact


def test_long_answers_are_counted_as_short_ones_are() -> None:
    draw = random.Random(0)
    for _ in range(200):
        one, other = (" ".join(draw.choices("bcdefgh", k=draw.randint(1, 80))) for _ in range(2))
        assert f1(one, [other], "official_hotpot") == _published(one, other)[0] == f1(one, [other])


# faults that published graders have, by their row in the list of such faults: strict is right
FAULTS = [
    ("E1", "yes it is", "yes", 0, 0),
    ("E1", "no", "No.", 1, 1),
    ("E1", "noanswer", "no", 0, 0),
    ("E2", "The", "A", 0, 0),
    ("E2", "a the", "an", 0, 0),
    ("E3", "vitamin C", "A", 0, 0),
    ("E3", "anything", "", 0, 0),
    ("E5", "“Paris”", "Paris", 1, 1),
    ("E5", "O’Brien", "O'Brien", 1, 1),
    ("E5", "«Paris»", "'Paris'", 1, 1),
    ("E6", "Sa\u0303o Paulo", "São Paulo", 1, 1),
    ("E9", "北京", "北京市", 0.8, 0),
    ("E9", "東京タワー", "東京タワー", 1, 1),
    ("E10", "", "", 0, 0),
    ("E11", "3.5", "35", 0, 0),
    ("E11", "-5", "5", 0, 0),
    ("E11", "C++", "C", 0, 0),
    ("E11", "10:30", "1030", 0, 0),
    ("E11", "1,000", "1000", 1, 1),
    ("E11", "1,2", "12", 0, 0),
    ("E11", "50%", "50", 0, 0),
    ("E12", "!", "!", 1, 1),
    ("E12", "The The", "The The", 1, 1),
    ("E12", "The  EIFFEL tower.", "Eiffel Tower", 1, 1),  # exact match normalises as F1 does
    ("E12", "Paris in France", "Paris", 0.5, 0),  # and the two are not swapped
]


@pytest.mark.parametrize(("row", "prediction", "gold", "token_f1", "exact"), FAULTS)
def test_faults_of_published_graders(row, prediction, gold, token_f1, exact) -> None:
    assert f1(prediction, [gold]) == pytest.approx(token_f1, abs=1e-15)
    assert exact_match(prediction, [gold]) == exact


def test_scores_do_not_depend_on_what_was_graded_before() -> None:
    pairs = [(a, b) for a in GOLDS for b in GOLDS]
    before = [f1(a, [b]) for a, b in pairs]
    order = list(range(len(pairs)))
    random.Random(0).shuffle(order)
    again = {i: f1(pairs[i][0], [pairs[i][1]]) for i in order}
    assert [again[i] for i in range(len(pairs))] == before


@pytest.mark.skipif(
    "CADRE_TEST_DATA" not in os.environ, reason="CADRE_TEST_DATA names no folder of data sets"
)
def test_every_gold_of_real_data_sets_is_usable() -> None:
    folder = pathlib.Path(os.environ["CADRE_TEST_DATA"])
    rows = [
        json.loads(line)
        for name in ("hotpot/dev.jsonl", "hotpot/train.jsonl", "nq/nq_open_dev.jsonl")
        for line in (folder / name).read_text("utf-8").splitlines()
    ]
    golds = [g for row in rows for g in row.get("answers") or row["answer"]]
    assert len(golds) > 1000
    assert [g for g in golds if not (usable(g) and f1(g, [g]) == exact_match(g, [g]) == 1.0)] == []
