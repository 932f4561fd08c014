"""Rows of mathematics: problem, answer and source, and golds that can not be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_rows import (
    decoded,
    load,
    task_of,
)
from workflows.data.fields import (
    BAD_GOLD,
    NO_GOLD,
    NO_PROBLEM,
    Unusable,
)
from workflows.data.math_rows import known_set, last_boxed


def test_gsm8k_rows_are_mathematics_and_the_number_after_the_marks_is_the_answer(tmp_path):
    row = {"question": "How many?", "answer": "He has 2 * 600 = <<2*600=1200>>1,200 of them.\n#### 1,200"}
    loaded = load(tmp_path, row, name="gsm8k_test.jsonl")
    (task,) = decoded(loaded)
    assert (task["inputs"], task["gold"]) == ({"problem": "How many?"}, {"answers": ["1200"]})
    assert (task["split"], task["source"], loaded.formats) == ("test", "gsm8k", ("gsm8k",))


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "A", "reward_model": {"ground_truth": "42"}}, ["42"]),
        ({"reward_model": {"ground_truth": "", "answer": "42"}}, ["42"]),
        ({"reward_model": {"target": 42}}, ["42"]),
        ({"answer": 42.0}, ["42"]),
        ({"answer": 0}, ["0"]),
        ({"answer": "x\n#### 42"}, ["42"]),
        ({"answer": r"So it is $\boxed{\frac{1}{2}}$."}, [r"\frac{1}{2}"]),
        ({"ground_truth": ["1/2", "0.5"]}, ["1/2", "0.5"]),
        ({"target": "-3"}, ["-3"]),
        ({"solution": r"First \boxed{1}, then \fbox{42}."}, ["42"]),
        ({"solution": r"\boxed 7"}, ["7"]),
        ({"answer": None, "solution": r"\boxed{\left\{1, 2\right\}}"}, [r"\left\{1, 2\right\}"]),
    ],
)
def test_mathematics_answers_are_the_first_of_many_places(tmp_path, fields, answers):
    assert task_of(tmp_path, {"problem": "P"} | fields)["gold"] == {"answers": answers}


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "P", "problem": "other"},
        {"question": " ", "problem": "P"},
        {"query": "P"},
        {"prompt": "P"},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "P"}]},
        {"raw_prompt": [{"role": "user", "content": "P"}]},
    ],
)
def test_mathematics_problems_are_the_first_of_many_places(tmp_path, fields):
    assert task_of(tmp_path, fields | {"answer": "1"}, format="math")["inputs"] == {"problem": "P"}


def test_level_and_subject_stay_in_gold(tmp_path):
    row = {"problem": "P", "solution": r"\boxed{1}", "level": "Level 5", "type": "Algebra"}
    assert task_of(tmp_path, row)["gold"] == {"answers": ["1"], "level": "Level 5", "type": "Algebra"}


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"data_source": "mine", "source": "x"}, "mine"),
        ({"source": "mine"}, "mine"),
        ({"dataset": "mine"}, "mine"),
        ({"extra_info": {"data_source": "mine"}}, "mine"),
        ({"url": "https://x.org/wiki/2024_AIME_I_Problems/Problem_4"}, "aime24"),
        ({"unique_id": "MATH-500/test/1"}, "math-500"),
        ({"path": "/sets/DeepScaleR/a.json"}, "deepscaler"),
        ({}, "rows"),
    ],
)
def test_the_source_of_mathematics_is_told_or_inferred(tmp_path, fields, source):
    assert task_of(tmp_path, {"problem": "P", "answer": "1"} | fields)["source"] == source


def test_a_known_set_is_known_by_its_file_name_too(tmp_path):
    row = {"problem": "P", "answer": "1"}
    assert task_of(tmp_path, row, name="AIME2025-part_1.jsonl")["source"] == "aime25"
    assert task_of(tmp_path, row | {"problem": "R"}, name="amc_23.jsonl")["source"] == "amc23"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("math500", "math-500"),
        ("AMC23", "amc23"),
        ("AIME_2024", "aime24"),
        ("aime26", "aime26"),
        ("openai/gsm8k", "gsm8k"),
        ("deepscaler", "deepscaler"),
        ("aime2023", None),
        ("math", None),
        ("", None),
    ],
)
def test_known_sets(text, name):
    assert known_set([text]) == name


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"answer": "None"}, BAD_GOLD),
        ({"answer": r"\boxed{}"}, BAD_GOLD),
        ({"answer": "$ $"}, BAD_GOLD),
        ({"answer": r"so \boxed{\frac{1}{2}"}, BAD_GOLD),
        ({"answer": "a long solution without a box " * 30}, BAD_GOLD),
        ({"answer": "x\n####"}, BAD_GOLD),
        ({"answer": ["1", "nan"]}, BAD_GOLD),
        ({"answer": True}, NO_GOLD),
        ({"answer": {"x": 1}}, NO_GOLD),
        ({"solution": "it is 4"}, NO_GOLD),
        ({"solution": " "}, NO_GOLD),
        ({"answer": []}, NO_GOLD),
        ({"answer": "1", "problem": " "}, NO_PROBLEM),
        ({"answer": "1", "problem": 7}, NO_PROBLEM),
    ],
)
def test_a_gold_that_cannot_be_told_is_refused(tmp_path, fields, cause):
    rows = [{"problem": "good", "answer": "1"}, {"problem": "P"} | fields]
    loaded = load(tmp_path, *rows, format="math", max_bad_share=0.5)
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(2, cause)]


def test_a_gsm8k_row_without_marks_is_refused(tmp_path):
    good = {"question": "Q?", "answer": "#### 1"}
    loaded = load(tmp_path, good, {"question": "R?", "answer": "12"}, max_bad_share=0.5)
    assert "####" in loaded.rejects[0].reason


balanced = st.recursive(
    st.text(alphabet="ab1 +", max_size=4),
    lambda inner: st.tuples(inner, inner).map(lambda pair: f"{pair[0]}{{{pair[1]}}}"),
    max_leaves=6,
)


@given(balanced, balanced, st.sampled_from(["boxed", "fbox"]))
def test_a_box_gives_back_what_was_put_into_it(content, other, command):
    text = f"\\boxed{{{other}}} then \\{command}{{{content}}}."
    assert last_boxed(text) == content


@given(balanced)
def test_a_box_that_does_not_close_is_refused(content):
    with pytest.raises(Unusable):
        last_boxed(f"\\boxed{{{content}")
