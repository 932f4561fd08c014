"""Every encoding of tests that data sets use becomes the same cases; extraction finds the same program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflows.errors import DataError
from workflows.tools.code.cases import AssertCase, CallCase, CodeTests, StdioCase, read_tests
from workflows.tools.code.extract import extract_code
from workflows.tools.code.names import missing_imports, unbound_names

PAIRS = [("1 2\n", "3\n"), ("5 6\n", "11\n")]
STDIO = tuple(StdioCase(*pair) for pair in PAIRS)


def nested(value: Any) -> list[Any]:
    """The same value as an object, as JSON text, in wrappers, and in wrappers as text."""
    return [
        value,
        json.dumps(value),
        {"tests": value},
        {"tests": json.dumps(value)},
        json.dumps({"public_tests": value}),
        {"private_tests": {"tests": value}},
        {"public_tests": value, "private_tests": [{"input": "other", "output": "other"}]},
        [value] if isinstance(value, dict) else {"test_cases": value},
    ]


@pytest.mark.parametrize(
    "value",
    [
        [{"input": i, "output": o} for i, o in PAIRS],
        [{"stdin": i, "stdout": o} for i, o in PAIRS],
        [{"input": i, "expected_output": o} for i, o in PAIRS],
        {"inputs": [i for i, _ in PAIRS], "outputs": [o for _, o in PAIRS]},
        [{"inputs": [i], "outputs": [o]} for i, o in PAIRS],
        {"input_output": json.dumps({"inputs": [i for i, _ in PAIRS], "outputs": [o for _, o in PAIRS]})},
        {"kind": "stdio", "cases": [{"input": i, "output": o} for i, o in PAIRS]},
    ],
)
def test_every_encoding_of_stdin_tests_gives_the_same_cases(value: Any):
    canonical = isinstance(value, dict) and "kind" in value
    for encoding in [value, json.dumps(value)] if canonical else nested(value):
        tests = read_tests(encoding)
        assert (tests.kind, tests.cases) == ("stdio", STDIO)


@pytest.mark.parametrize("key", ["fn_name", "function_name", "func_name"])
@pytest.mark.parametrize("level", ["case", "set", "wrapper", "metadata", "argument"])
def test_a_function_name_at_any_level_makes_calls(key: str, level: str):
    case: dict[str, Any] = {"input": "1\n2", "output": "3"}
    given: dict[str, Any] = {"tests": [case]}
    {"case": case, "set": given, "wrapper": given}.get(level, {})[key] = "add"
    if level == "metadata":
        given["metadata"] = json.dumps({key: "add"})
    name = "add" if level == "argument" else None
    tests = read_tests(json.dumps({"public_tests": given}) if level == "wrapper" else given, fn_name=name)
    assert (tests.kind, tests.fn_name) == ("call", "add")
    assert tests.cases == (CallCase((1, 2), 3, "line"),)


def test_a_name_within_wins_over_one_without():
    tests = read_tests(
        {"fn_name": "outer", "tests": [{"fn_name": "inner", "input": "1", "output": "1"}]}, fn_name="f"
    )
    assert tests.fn_name == "inner"


@pytest.mark.parametrize(
    ("given", "args"),
    [
        ("1\n2", (1, 2)),
        ('[1, 2]\n"a"', ([1, 2], "a")),
        ("true\nnull", (True, None)),
        ("True\nNone", (True, None)),
        ("abc", ("abc",)),
        ('"abc"', ("abc",)),
        ("[\n1,\n2\n]", ([1, 2],)),
        ("", ()),
        (["a", True, None, [1]], ("a", True, None, [1])),
        ([["x"], {"k": None}], (["x"], {"k": None})),
        ({"k": 1}, ({"k": 1},)),
        (7, (7,)),
    ],
)
def test_arguments_keep_their_types(given: Any, args: tuple[Any, ...]):
    (case,) = read_tests([{"input": given, "output": "1"}], fn_name="f").cases
    assert isinstance(case, CallCase)
    assert case.args == args


def test_what_is_expected_is_parsed_only_where_the_input_is_text():
    text, value = read_tests({"inputs": ["1", [1]], "outputs": ["[1]", "[1]"]}, fn_name="f").cases
    assert isinstance(text, CallCase)
    assert isinstance(value, CallCase)
    assert text.expected == [1]
    assert value.expected == "[1]"


def test_a_list_for_stdin_is_its_lines_and_not_its_repr():
    (case,) = read_tests([{"input": ["a b", 3, True, None], "output": ["x", 1.5]}]).cases
    assert case == StdioCase("a b\n3\ntrue\n", "x\n1.5")


@pytest.mark.parametrize(
    ("encoding", "cases", "setup"),
    [
        (["assert f(1) == 1", "assert f(2) == 2"], 2, ""),
        (
            {"test_list": ["assert f(1) == 1"], "test_setup_code": "import math", "code": "def f(x): ..."},
            1,
            "import math",
        ),
        (
            {"test_imports": ["import math", "import re"], "test_list": ["assert f(1)"]},
            1,
            "import math\nimport re",
        ),
        ("assert f(1) == 1\nassert f(2) == 2", 1, ""),
        ({"test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": "f"}, 1, ""),
    ],
)
def test_asserts(encoding: Any, cases: int, setup: str):
    for value in (encoding, json.dumps(encoding) if not isinstance(encoding, str) else encoding):
        tests = read_tests(value, fn_name="f")
        assert (tests.kind, len(tests.cases), tests.setup, tests.fn_name) == ("assert", cases, setup, "f")


def test_check_is_called_if_nobody_else_does():
    defined = "def check(candidate):\n    assert candidate(1) == 1\n"
    (case,) = read_tests({"test": defined, "entry_point": "f"}).cases
    assert isinstance(case, AssertCase)
    assert case.code.rstrip().endswith("check(f)")
    (called,) = read_tests({"test": defined + "check(f)\n", "entry_point": "f"}).cases
    assert isinstance(called, AssertCase)
    assert called.code.count("check(f)") == 1


BATCH = "The first line contains t, the number of test cases. Each line has a number."


@pytest.mark.parametrize(
    ("problem", "given", "output", "split"),
    [
        (BATCH, "2\n5\n6\n", "25\n36\n", 2),
        ("Each line has a number.", "2\n5\n6\n", "25\n36\n", 1),  # the statement does not say so
        (BATCH, "3\n5\n6\n", "25\n36\n", 1),
        (BATCH, "2\n5\n6\n", "25\n", 1),
        (BATCH, "1\n5\n", "25\n", 1),
        (BATCH, "x\n5\n", "25\n", 1),
        (BATCH, "", "", 1),
    ],
)
def test_a_batch_is_split_only_where_statement_and_input_agree(
    problem: str, given: str, output: str, split: int
):
    tests = read_tests([{"input": given, "output": output}], problem)
    assert len(tests.cases) == split
    if split == 2:
        assert tests.cases == (StdioCase("1\n5\n", "25\n"), StdioCase("1\n6\n", "36\n"))


@pytest.mark.parametrize(
    ("statement", "seconds"),
    [
        ("time limit per test: 2 seconds\nmemory limit 256 MB", 2),
        ("Time Limit: 1.5 s", 1.5),
        ("time limit per test500 milliseconds", 0.5),
        ("**Time limit**: 250 ms", 0.25),
        ("time limit per test\n\n3 seconds", None),
        ("It takes 2 seconds to boil.", None),
        ("", None),
    ],
)
def test_time_limits_of_statements(statement: str, seconds: float | None):
    assert read_tests([], statement).time_limit_seconds == seconds


@pytest.mark.parametrize(
    "encoding",
    [
        "neither JSON nor Python",
        5,
        [5],
        {"inputs": ["1"], "outputs": []},
        {"kind": "stdio", "cases": [{"input": 1, "output": "1"}]},
        {"kind": "stdio", "cases": [{"input": "1", "outptu": "1"}]},
        {"kind": "call", "cases": []},
        {"kind": "unknown", "cases": []},
        {"something": 1},
        [{"input": "1"}],
        [{"input": "1", "output": "1"}, "assert f(1)"],
        [{"input": "1", "output": "1", "checker_type": "nonsense"}],
        [{"input": "1", "output": "1", "checker_type": "custom"}],
    ],
)
def test_what_is_no_test_is_refused(encoding: Any):
    with pytest.raises(DataError):
        read_tests(encoding)


@pytest.mark.parametrize("encoding", [None, [], {}, "", "[]", {"tests": []}, {"inputs": [], "outputs": []}])
def test_no_tests_are_no_cases(encoding: Any):
    if encoding == {}:
        with pytest.raises(DataError, match="no key"):
            read_tests(encoding)
    else:
        assert read_tests(encoding).cases == ()


@pytest.mark.parametrize(
    "tests",
    [
        read_tests([{"input": "1", "output": "1"}], "time limit: 3 s"),
        read_tests({"inputs": [["a"], "1"], "outputs": [["a"], "2"], "fn_name": "f"}),
        read_tests(["assert f(1)"], fn_name="f"),
        CodeTests(
            "stdio", STDIO, checker="custom", checker_code="def check(i, o, e): ...", whitespace="lines"
        ),
    ],
)
def test_the_canonical_form_reads_back(tests: CodeTests):
    through = json.loads(json.dumps(tests.to_json()))
    assert CodeTests.from_json(through) == tests
    assert read_tests(through) == tests


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a <code>\nprint(1)\n</code> b <code>print(2)</code>", "print(1)"),
        ("<CODE>print(1)</CODE>", "print(1)"),
        ("<code>print(1)", "print(1)"),
        ("<code>```python\nprint(1)\n```</code>", "print(1)\n"),
        ("<code>not = = python</code>", "not = = python"),
        ("<code>  </code>", None),
        ("```python\nprint(1)\n```\ntext\n```python\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\nOutput:\n```\n$ ls -l /tmp\n```", "print(1)\n"),
        ("```\nprint(1)\n", "print(1)\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```python\nnot = = python\n```", None),
        ("x = 1\nprint(x)", "x = 1\nprint(x)"),
        ("I think so", None),
        ("Yes", None),
        ("", None),
    ],
)
def test_extraction(text: str, code: str | None):
    assert extract_code(text) == code


def test_names_are_bound_by_every_statement_that_binds():
    code = """
import os.path as p, sys
from a import b as c
def f(x, *args, y=1, **kw): return x, args, y, kw
class K: pass
for i in []: pass
with open('x') as w: pass
try: pass
except ValueError as e: print(e)
[j for j in range(3)]
(k := 3)
global g
match 1:
    case {'a': m, **rest}: print(m, rest)
    case [n, *others]: print(n, others)
print(p, sys, c, f, K, i, w, j, k, free)
"""
    assert unbound_names(code) == {"free"}


def test_only_what_is_missing_is_imported():
    assert missing_imports("def f(x: List[int]): return deque(x), math.pi").split("\n") == [
        "from typing import List",
        "from collections import deque",
        "import math",
    ]
    assert missing_imports("from math import *\nimport heapq\nprint(sqrt(2), heapq)") == ""
    assert missing_imports("def gcd(a, b): return a\ngcd(1, 2)") == ""
    assert missing_imports("not = = python") == ""
