"""Rows of published programming benchmarks, as published."""

from __future__ import annotations

import pytest

from tests.support.data_rows import (
    HUMANEVAL,
    MULTIPLE,
    refused,
    task_of,
)


def test_humaneval_as_published(tmp_path):
    task = task_of(tmp_path, HUMANEVAL)
    assert task["task_id"] == "HumanEval/0"
    assert task["inputs"]["problem"] == HUMANEVAL["prompt"]
    assert task["inputs"]["fn_name"] == "f"
    assert task["inputs"]["public_tests"]["cases"] == []
    private = task["gold"]["private_tests"]
    assert (private["kind"], len(private["cases"])) == ("assert", 1)
    assert private["cases"][0]["code"].endswith("check(f)\n")
    assert "def helper" in private["setup"]
    assert "def f" not in private["setup"]
    assert task["gold"]["solution"] == HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"]
    space: dict = {}
    exec(task["gold"]["solution"] + private["setup"] + "\n" + private["cases"][0]["code"], space)


def test_mbpp_as_published(tmp_path):
    row = {
        "task_id": 11,
        "text": "Write a function to remove the first and last occurrence of a character.",
        "code": "def remove_Occ(s, ch):\n    return s",
        "test_list": ['assert remove_Occ("hello","l") == "heo"', "assert set(remove_Occ('a','b')) == {'a'}"],
        "test_setup_code": "import math",
        "challenge_test_list": ["assert remove_Occ('', 'x') == ''"],
    }
    task = task_of(tmp_path, row)
    assert (task["task_id"], task["inputs"]["fn_name"]) == ("11", "remove_Occ")
    assert [c["code"] for c in task["inputs"]["public_tests"]["cases"]] == row["test_list"][:1]
    assert [c["code"] for c in task["gold"]["private_tests"]["cases"]] == [
        row["test_list"][1],
        row["challenge_test_list"][0],
    ]
    assert task["gold"]["private_tests"]["setup"] == "import math"
    assert task["gold"]["solution"] == row["code"]


def test_challenge_tests_are_never_public(tmp_path):
    row = {
        "text": "P",
        "test_list": ["assert f(1) == 2"],
        "challenge_test_list": ["assert f(2) == 3", "assert f(3) == 4"],
    }
    task = task_of(tmp_path, row, public_tests=3)
    assert [c["code"] for c in task["inputs"]["public_tests"]["cases"]] == ["assert f(1) == 2"]


def test_mbpp_sanitized_and_the_function_of_the_tests(tmp_path):
    row = {
        "task_id": 2,
        "prompt": "Write a function.",
        "test_imports": ["import math"],
        "test_list": ["assert sorted(similar((3, 4), (5, 4))) == [4]", "assert similar((1,), (2,)) == ()"],
    }
    task = task_of(tmp_path, row)
    assert task["inputs"]["fn_name"] == "similar"
    assert task["gold"]["private_tests"]["setup"] == "import math"


def test_mbpp_as_multiple_has_it(tmp_path):
    task = task_of(tmp_path, MULTIPLE)
    assert (task["task_id"], task["inputs"]["problem"]) == ("mbpp_1_f", MULTIPLE["prompt"])
    assert [c["code"] for c in task["inputs"]["public_tests"]["cases"]] == ["assert f(1) == 2"]
    assert [c["code"] for c in task["gold"]["private_tests"]["cases"]] == ["assert f(f(2)) == 4"]


def test_a_check_that_does_more_than_assert_stays_whole(tmp_path):
    test = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i + 1\n\ncheck(f)\n"
    task = task_of(tmp_path, MULTIPLE | {"test": test})
    assert task["inputs"]["public_tests"]["cases"] == []
    assert task["gold"]["private_tests"]["cases"] == [{"code": test.strip()}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (HUMANEVAL | {"test": "def check(candidate)\n  x"}, "no Python code"),
        (HUMANEVAL | {"test": "assert f(1)"}, "no function check"),
        (HUMANEVAL | {"test": None}, "expected Python code"),
        (HUMANEVAL | {"entry_point": "not a name"}, "entry_point"),
        (HUMANEVAL | {"prompt": " "}, "blank"),
        (MULTIPLE | {"language": "rs"}, "language"),
        ({"text": "P", "test_list": []}, "empty"),
        ({"text": "P", "test_list": "assert f(1)"}, "list of texts"),
        ({"text": "P", "test_list": ["assert f(1"]}, "no Python code"),
        ({"text": None, "test_list": ["assert f(1)"]}, "no text"),
    ],
)
def test_a_benchmark_row_of_another_shape_is_refused(tmp_path, row, reason):
    _, message = refused(tmp_path, row)
    assert reason in message
