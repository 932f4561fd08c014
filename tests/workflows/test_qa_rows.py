"""Rows of question answering: where question and answers may stand, and what is refused."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewards.grading.qa import usable
from tests.support.data_rows import (
    decoded,
    json_values,
    load,
    refused,
    task_of,
)
from workflows.data.fields import (
    NO_GOLD,
    NO_PROBLEM,
)
from workflows.data.qa_rows import coerced_answers, is_letter, vanishes
from workflows.data.tasks import load_tasks


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({"question": "Q?", "query": "other", "prompt": [{"role": "user", "content": "p"}]}, "Q?"),
        ({"question": " ", "query": "Q?"}, "Q?"),
        ({"question": None, "query": "Q?"}, "Q?"),
        ({"question": ["no", "text"], "extra_info": {"question": "Q?"}}, "Q?"),
        (
            {
                "prompt": [
                    {"role": "user", "content": "first"},
                    {"role": "assistant", "content": "a"},
                    {"role": "user", "content": "Q?"},
                    {"role": "system", "content": "later"},
                ]
            },
            "Q?",
        ),
        ({"prompt": [], "raw_prompt": [{"role": "user", "content": "Q?"}]}, "Q?"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "Q?"}]}]}, "Q?"),
    ],
)
def test_the_question_is_the_first_of_many_places_that_has_one(tmp_path, fields, question):
    task = task_of(tmp_path, fields | {"golden_answers": ["Ada"]}, format="qa")
    assert task["inputs"] == {"question": question}


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "A1", "ground_truth": "A2"}, ["A1"]),
        ({"answer": "", "ground_truth": ["A1", " ", "A2"]}, ["A1", "A2"]),
        ({"answer": None, "target": {"answer": "A1"}}, ["A1"]),
        ({"target": {"ground_truth": {"target": ["A1"]}}}, ["A1"]),
        ({"golden_answers": ["A1"]}, ["A1"]),
        ({"golden_answers": [1995]}, ["1995"]),
        ({"extra_info": {"answer": "A1"}}, ["A1"]),
        ({"extra_info": None, "reward_model": {"style": "rule", "ground_truth": "A1"}}, ["A1"]),
        ({"reward_model": {"ground_truth": None, "answer": "A1"}}, ["A1"]),
        ({"reward_model": "A1"}, ["A1"]),
        ({"answer": 12.0}, ["12"]),
        ({"answer": {"other": "x"}, "target": "A1"}, ["A1"]),
        ({"answer": {"target": ["A1", "the"]}}, ["A1"]),
    ],
)
def test_the_answers_are_the_first_of_many_places_in_any_shape(tmp_path, fields, answers):
    task = task_of(tmp_path, {"question": "Q?"} | fields, format="qa")
    assert task["gold"] == {"answers": answers}


def test_a_row_of_chat_parquet_as_trainers_read_it(tmp_path):
    rows = [
        {
            "data_source": "nq",
            "prompt": [{"role": "user", "content": "Who wrote it?"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada", "Ada Lovelace"]}},
            "extra_info": {"index": 0, "split": "validation"},
            "metadata": None,
            "level": math.nan,
        },
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train_verl.parquet")
    loaded = load_tasks(str(tmp_path / "train_verl.parquet"))
    (task,) = decoded(loaded)
    assert task["inputs"] == {"question": "Who wrote it?"}
    assert task["gold"] == {"answers": ["Ada", "Ada Lovelace"]}
    assert (task["split"], task["source"]) == ("dev", "nq")
    assert loaded.formats == ("qa",)


def test_a_question_of_nothing_is_refused_not_asked(tmp_path):
    row = {"question": "", "prompt": [{"role": "assistant", "content": "x"}], "answer": "Ada"}
    assert refused(tmp_path, row) == (NO_PROBLEM, "no question")


@pytest.mark.parametrize("answer", [{"other": "x"}, [[]], [{"text": "x"}], " "])
def test_an_object_without_an_answer_is_no_answer(tmp_path, answer):
    cause, _ = refused(tmp_path, {"question": "Q?", "reward_model": {"ground_truth": answer}, "query": "Q?"})
    assert cause == NO_GOLD


@given(json_values)
def test_coerced_answers_are_texts_with_something_in_them(value):
    assert all(isinstance(answer, str) and answer.strip() for answer in coerced_answers(value))


@example("\b")
@example("\x1b!")
@example("\u200b")
@example("\u034f\ufe0f")
@given(st.text(max_size=6))
def test_an_answer_that_we_accept_can_be_matched_in_every_mode_of_grading(answer):
    if not vanishes(answer):
        modes = ("strict", "official_hotpot", "official_squad") if not is_letter(answer) else ("strict",)
        assert all(usable(answer, mode) for mode in modes)


def test_answers_left_out_are_counted(tmp_path):
    loaded = load(tmp_path, {"question": "Q?", "answer": ["the", "x"]}, {"question": "R?", "answer": "x"})
    assert list(loaded.notes.values()) == [1]


@pytest.mark.parametrize("missing", [float("nan"), [float("nan")], None, []])
def test_a_gap_of_a_table_is_not_an_answer(missing):
    assert coerced_answers(missing) == []
