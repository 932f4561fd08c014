"""Habits of the sites and harnesses that data sets of programs come from: what passes there passes here."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.errors import DataError, UsageError
from workflows.tools.code.cases import CodeTests, read_tests
from workflows.tools.code.judge import CodeJudge, JudgeLimits
from workflows.tools.code.names import missing_imports


def _works() -> bool:
    try:
        CodeJudge().check()
    except UsageError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _works(), reason="no bubblewrap that works on this machine")

LIMITS = JudgeLimits(cpu_seconds=2.0, idle_seconds=2.0, memory_mib=512, output_kib=512)


def verdict(code: str, tests: Any, **limits: Any) -> str:
    judge = CodeJudge(LIMITS if not limits else JudgeLimits.of({"cpu_seconds": 2.0, **limits}))
    return judge.grade(code, read_tests(tests)).verdict


def call(args: Any, expected: Any, name: str = "f") -> dict[str, Any]:
    return {"fn_name": name, "inputs": [args], "outputs": [expected]}


# --- parallel lists, and outputs in a list --------------------------------------------------------------

TWICE = "print(2 * int(input()))"
BOTH = "print(14); print(16)"


@pytest.mark.parametrize(
    ("one", "other"),
    [("input", "output"), ("inputs", "outputs"), ("stdin", "stdout"), ("input", "expected_output")],
)
@pytest.mark.parametrize("ends", ["\n", ""])
def test_parallel_lists_are_as_many_cases_whatever_they_are_called(one, other, ends):
    tests = read_tests({one: [f"7{ends}", f"8{ends}"], other: [f"14{ends}", f"16{ends}"]})
    assert len(tests.cases) == 2
    assert verdict(TWICE, tests) == "passed"
    assert verdict(BOTH, tests) == "wrong_answer"


def test_a_list_of_lines_beside_another_number_of_lines_is_one_case():
    tests = read_tests({"input": ["2", "7 8"], "output": ["15"]})
    assert [(case.input, case.output) for case in tests.cases] == [("2\n7 8", "15")]
    assert verdict("input(); print(sum(map(int, input().split())))", tests) == "passed"


def test_parallel_lists_hold_the_arguments_of_calls_too():
    tests = read_tests({"fn_name": "f", "input": ["1\n2", "3\n4"], "output": ["3", "7"]})
    assert len(tests.cases) == 2
    assert verdict("def f(a, b): return a + b", tests) == "passed"
    assert len(read_tests({"fn_name": "f", "args": ["a", "b"], "output": ["c", "d"]}).cases) == 1


@pytest.mark.parametrize(
    ("outputs", "code", "expected"),
    [
        ([[[1, 2, 3]], [[4, 5]]], "def f(a): return sorted(a)", "passed"),
        ([[[1, 2, 3]], [[4, 5]]], "def f(a): return [sorted(a)]", "passed"),
        ([[6], [9]], "def f(a): return sum(a)", "passed"),
        ([[6], [9]], "def f(a): return [sum(a)]", "passed"),
        ([[1, 2, 3], [4, 5]], "def f(a): return sorted(a)", "passed"),
        ([[[1, 2, 3]], [[4, 5]]], "def f(a): return a", "wrong_answer"),
        ([[1, 2, 3], [4, 5]], "def f(a): return a[0]", "wrong_answer"),
        (
            [[1, 2], [4]],
            "def f(a): return 4 if len(a) < 3 else [1, 2]",
            "wrong_answer",
        ),  # not all are wrapped
    ],
)
def test_outputs_that_are_all_wrapped_in_a_list_count_as_what_is_in_it(outputs, code, expected):
    tests = {"fn_name": "f", "inputs": [[[3, 1, 2]], [[5, 4]]], "outputs": outputs}
    assert verdict(code, tests) == expected
    assert verdict(code, read_tests(tests).to_json()) == expected  # as it is stored


# --- what a program finds there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "given", "output"),
    [
        ("print(10**5000)", "", "1" + 5000 * "0"),
        ("print(len(str(10**9000)))", "", "9001"),
        ("print(int('7' * 6000) % 10)", "", "7"),
        ("def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(5000))", "", "5000"),
        ("def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(40000))", "", "40000"),
        ("print(dist((0, 0), (3, 4)))", "", "5.0"),
        ("print(xor(5, 3), mean([1, 2]), deepcopy([1]), choice([7]))", "", "6 1.5 [1] 7"),
        ("print(sub(5, 3))", "", "2"),
        ("import os\nprint(os.read(0, os.fstat(0).st_size).decode())", "1 2\n3", "1 2\n3"),
        ("import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ).readline().decode())", "1 2\n3", "1 2"),
        (
            "import sys\nprint(sys.stdin.read(2), end='')\nsys.stdin.seek(0)\nprint(sys.stdin.read())",
            "ab",
            "abab",
        ),
        ("print(open('/dev/stdin').read())", "1 2\n3", "1 2\n3"),
        ("print(open(0).read())", "1 2\n3", "1 2\n3"),
        ("import os, sys\nos.write(1, sys.stdin.buffer.read())", "ü\n", "ü"),
        ("try: input()\nexcept EOFError: print('end')", "", "end"),
        ("import select, sys\nprint(len(select.select([sys.stdin], [], [], 0)[0]))", "x", "1"),
    ],
)
def test_a_script_finds_what_it_finds_on_the_sites(code, given, output):
    assert verdict(code, [{"input": given, "output": output}]) == "passed"


@pytest.mark.parametrize("code", ["import os\nos.write(0, b'x')", "import os\nos.ftruncate(0, 1 << 30)"])
def test_standard_input_can_not_be_changed(code):
    assert verdict(f"{code}\nprint(1)", [{"input": "abc", "output": "1"}]) == "runtime_error"


def test_endless_recursion_still_ends_in_an_error():
    assert verdict("def f(): f()\nf()", [{"input": "", "output": ""}]) == "runtime_error"


def test_a_name_that_a_test_shares_with_a_module_is_the_programs_own():
    tests = read_tests(["assert gcd(4, 6) == 2", "assert sub(5, 3) == 2"])
    right = "def gcd(a, b): return a if b == 0 else gcd(b, a % b)\ndef sub(a, b): return a - b"
    assert verdict(right, tests) == "passed"
    assert verdict("def gcd(a, b): return 0\ndef sub(a, b): return 0", tests) == "wrong_answer"


def test_only_names_that_a_program_lacks_are_imported():
    assert missing_imports("print(dist(a, b))", all_names=True) == "from math import dist"
    assert missing_imports("def dist(a): pass\ndist(1)", all_names=True) == ""
    assert missing_imports("print(dist(a, b))") == ""
    assert missing_imports("print(pow(2, 3), max(1, 2))", all_names=True) == ""


# --- keys, and truth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        ([{"1": 5}], "def f(d): return d[1]", "passed"),
        ([{"1": 5}], "def f(d): return d['1']", "passed"),
        ([[{"1": 5}, {"x": 1}]], "def f(rows): return rows[0][1] if 'x' in rows[1] else 0", "passed"),
        ([{"a": {"-1": 5}}], "def f(d): return d['a'][-1]", "passed"),
        ([{"1": 5, "x": 0}], "def f(d): return d['1']", "passed"),
        ([{"1": 5, "x": 0}], "def f(d): return d[1]", "runtime_error"),
        ([{"01": 5}], "def f(d): return d[1]", "runtime_error"),
        ([{"1": 5}], "def f(d): return 6", "wrong_answer"),
    ],
)
def test_digits_for_keys_may_stand_for_numbers(args, code, expected):
    assert verdict(code, call(args, 5)) == expected


def test_digits_for_keys_in_what_comes_back_are_the_same_either_way():
    for code in ("def f(): return {1: 2}", "def f(): return {'1': 2}"):
        assert verdict(code, call([], {"1": 2})) == "passed"


@pytest.mark.parametrize(
    ("returned", "expected", "strictly"),
    [
        ("True", 1, "wrong_answer"),
        ("1", True, "wrong_answer"),
        ("0", False, "wrong_answer"),
        ("[True, 2]", [1, 2], "wrong_answer"),
        ("{'a': True}", {"a": 1}, "wrong_answer"),
        ("True", 1.0, "wrong_answer"),
        ("True", True, "passed"),
        ("1", 1, "passed"),
        ("1.0", 1, "passed"),
    ],
)
def test_true_is_1_unless_the_limits_or_the_tests_are_strict(returned, expected, strictly):
    code, tests = f"def f(): return {returned}", call([], expected)
    assert verdict(code, tests) == "passed"
    assert verdict(code, tests, strict_bool=True) == strictly
    assert verdict(code, tests | {"strict_bool": True}) == strictly
    stored = read_tests(tests | {"strict_bool": True}).to_json()
    assert verdict(code, stored) == strictly


def test_strictness_that_is_no_truth_value_is_refused():
    with pytest.raises(UsageError, match="strict_bool must be true or false, got 1"):
        JudgeLimits.of({"strict_bool": 1})
    with pytest.raises(DataError, match="strict_bool of tests must be true or false"):
        CodeTests("call", (), fn_name="f", strict_bool="yes")
