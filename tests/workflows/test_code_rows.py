"""Rows of programming: problem, tests, function name, and tests that can not be used."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_rows import (
    CODE,
    STDIO,
    decoded,
    load,
    sides,
    task_of,
)
from workflows.data.code_rows import FIRST_CASES_NOTE, ONE_CASE_NOTE, SHOWN_NOTE, unwrapped
from workflows.data.fields import (
    BAD_FIELD,
    BAD_TESTS,
    NO_PROBLEM,
    NO_TESTS,
    TOO_LARGE,
)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"problem": "P", "question": "x"}, "P"),
        ({"problem": "", "question": "P"}, "P"),
        ({"query": "P"}, "P"),
        ({"prompt": "P"}, "P"),
        ({"prompt": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}]}, "A\n\nB"),
        (
            {"prompt": "You write code.\n### Question:\nP\n\nmore\n\n### Format: do this\n### Answer: here"},
            "P\n\nmore",
        ),
    ],
)
def test_code_problems_are_the_first_of_many_places_without_their_wrapping(tmp_path, fields, problem):
    assert task_of(tmp_path, fields | {"tests": STDIO})["inputs"]["problem"] == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("### Question:\nP\n### Answer: (x)\n", "P"),
        ("# Question: P", "P"),
        ("no heading", "no heading"),
        ("### Answer: x", "### Answer: x"),
        ("### Question:\n\n### Format: x", "### Question:\n\n### Format: x"),
    ],
)
def test_wrapping_headings_are_taken_off_and_nothing_else(text, problem):
    assert unwrapped(text) == problem


@pytest.mark.parametrize(
    "fields",
    [
        {"tests": STDIO},
        {"tests": json.dumps(STDIO)},
        {"tests": [], "test_cases": STDIO},
        {"tests": {"inputs": ["1\n", "3\n", "5\n"], "outputs": ["2\n", "4\n", "6\n"]}},
        {"answer": json.dumps(STDIO)},
        {"label": {"tests": STDIO}},
        {"reward_model": {"ground_truth": json.dumps(STDIO)}},
        {"reward_model": {"answer": STDIO}},
        {"reward_model": {"target": STDIO}},
        {"extra_info": {"tests": STDIO}},
        {"answer": "a text, no tests", "extra_info": {"tests": json.dumps(STDIO)}},
    ],
)
def test_tests_are_the_first_of_many_places_and_the_first_of_one_list_is_public(tmp_path, fields):
    loaded = load(tmp_path, {"problem": "Add one."} | fields)
    (task,) = decoded(loaded)
    assert loaded.formats == ("code",)
    assert sides(task) == (["1\n"], ["3\n", "5\n"])
    assert task["gold"]["private_tests"]["kind"] == "stdio"
    assert loaded.notes == {FIRST_CASES_NOTE: 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"public_tests": STDIO[:2], "private_tests": STDIO[2:]},
        {"tests": {"public_tests": STDIO[:2], "private_tests": STDIO[2:]}},
        {"tests": json.dumps({"tests": {"public_tests": STDIO[:2], "private_tests": STDIO[2:]}})},
        {"public_test_cases": json.dumps(STDIO[:2]), "private_test_cases": json.dumps(STDIO[2:])},
        {"extra_info": {"public_test_cases": STDIO[:2], "private_test_cases": STDIO[2:]}},
        {"reward_model": {"ground_truth": {"public_tests": STDIO[:2], "private_tests": STDIO[2:]}}},
    ],
)
def test_tests_that_a_data_set_divides_stay_divided(tmp_path, fields):
    loaded = load(tmp_path, {"problem": "Add one."} | fields)
    assert sides(decoded(loaded)[0]) == (["1\n", "3\n"], ["5\n"])
    assert loaded.notes == {}


def test_private_tests_alone_leave_nothing_public(tmp_path):
    task = task_of(tmp_path, {"problem": "P", "private_tests": STDIO})
    assert sides(task) == ([], ["1\n", "3\n", "5\n"])


@pytest.mark.parametrize("private", [{}, {"private_tests": []}])
def test_public_tests_alone_are_one_list(tmp_path, private):
    task = task_of(tmp_path, {"problem": "P", "public_tests": STDIO} | private)
    assert sides(task) == (["1\n"], ["3\n", "5\n"])


def test_a_case_that_is_public_is_not_private(tmp_path):
    loaded = load(
        tmp_path,
        {"problem": "P", "public_tests": STDIO[:1], "private_tests": STDIO},
        {"problem": "R", "public_tests": STDIO, "private_tests": STDIO},
    )
    some, all_shown = decoded(loaded)
    assert sides(some) == (["1\n"], ["3\n", "5\n"])
    assert sides(all_shown) == (["1\n"], ["3\n", "5\n"])
    assert loaded.notes == {SHOWN_NOTE: 2, FIRST_CASES_NOTE: 1}


@given(total=st.integers(1, 5), public_tests=st.integers(0, 6))
def test_no_public_count_takes_the_last_private_case(tmp_path_factory, total, public_tests):
    cases = [{"input": f"{i}\n", "output": "0\n"} for i in range(total)]
    folder = tmp_path_factory.mktemp("public")
    loaded = load(folder, {"problem": "P", "tests": cases}, public_tests=public_tests)
    public, private = sides(decoded(loaded)[0])
    assert public + private == [f"{i}\n" for i in range(total)]
    assert len(public) == min(public_tests, total - 1)
    assert sum(loaded.notes.values()) == (public_tests > 0)


def test_one_case_is_private_and_said_to_be(tmp_path):
    loaded = load(tmp_path, {"problem": "P", "tests": STDIO[:1]}, {"problem": "R", "tests": STDIO[:1] * 3})
    assert [sides(task)[0] for task in decoded(loaded)] == [[], []]
    assert loaded.notes == {ONE_CASE_NOTE: 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"fn_name": "f"},
        {"metadata": {"func_name": "f"}},
        {"metadata": json.dumps({"function_name": "f"})},
        {"extra_info": {"fn_name": "f"}},
        {"extra_info": {"metadata": '{"func_name": "f"}'}},
        {"label": {"func_name": "f"}},
        {"tests": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [2, 3]}},
    ],
)
def test_a_function_name_is_found_and_makes_the_tests_calls(tmp_path, fields):
    row = {"problem": "P", "starter_code": "def f(x):", "tests": {"inputs": [[1], [2]], "outputs": [2, 3]}}
    task = task_of(tmp_path, row | fields)
    assert task["inputs"]["fn_name"] == "f"
    assert task["inputs"]["starter_code"] == "def f(x):"
    private = task["gold"]["private_tests"]
    assert (private["kind"], private["fn_name"]) == ("call", "f")
    assert [(case["args"], case["expected"]) for case in private["cases"]] == [([2], 3)]


@pytest.mark.parametrize("name", ["uid", "query_id", "id", "task_id"])
def test_code_ids_and_sources_are_the_first_of_many_places(tmp_path, name):
    task = task_of(tmp_path, CODE | {name: 7, "datasource": "mine", "extra_info": {"split": "test"}})
    assert (task["task_id"], task["source"], task["split"]) == ("7", "mine", "test")


def test_code_without_an_id_has_a_hash_that_does_not_depend_on_its_place(tmp_path):
    other = CODE | {"problem": "Other."}
    first = {t["inputs"]["problem"]: t["task_id"] for t in decoded(load(tmp_path, CODE, other))}
    second = {t["inputs"]["problem"]: t["task_id"] for t in decoded(load(tmp_path, other, CODE))}
    assert first == second


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"tests": []}, NO_TESTS),
        ({"tests": None, "answer": "text"}, NO_TESTS),
        ({"tests": "no JSON, no Python"}, BAD_TESTS),
        ({"tests": "f(1)"}, BAD_TESTS),
        ({"tests": STDIO, "time_limit_seconds": "2 s"}, BAD_FIELD),
        ({"tests": [{"nothing": 1}]}, BAD_TESTS),
        ({"tests": STDIO, "problem": " "}, NO_PROBLEM),
    ],
)
def test_code_rows_without_usable_tests_are_refused(tmp_path, fields, cause):
    loaded = load(tmp_path, CODE, {"problem": "P"} | fields, format="code", max_bad_share=0.5)
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(2, cause)]


def test_a_time_limit_is_the_tests_and_the_problem_says_it(tmp_path):
    task = task_of(tmp_path, CODE | {"time_limit_seconds": 2})
    assert task["inputs"]["time_limit_seconds"] == 2
    assert task["gold"]["private_tests"]["time_limit_seconds"] == 2
    assert "time_limit_seconds" not in task_of(tmp_path, CODE)["inputs"]


def test_a_huge_row_is_refused(tmp_path):
    huge = [{"input": "1" * 3_000_000, "output": "2"}, {"input": "3" * 3_000_000, "output": "4"}]
    loaded = load(tmp_path, CODE, {"problem": "P", "tests": huge}, max_bad_share=0.5)
    assert [reject.cause for reject in loaded.rejects] == [TOO_LARGE]
