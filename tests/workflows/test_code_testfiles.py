"""Tests as files: pytest's functions and unittest's classes are graded, or refused when they are read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from workflows.data.tasks import load_tasks
from workflows.errors import DataError, UsageError
from workflows.tools.code.cases import read_tests
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge
from workflows.tools.code.testcode import function_name, packages_of, runnable


def _works() -> bool:
    try:
        CodeJudge().check()
    except UsageError:
        return False
    return True


runs = pytest.mark.skipif(not _works(), reason="no bubblewrap that works on this machine")

PYTEST = """
import pytest
from solution import add

def test_plain():
    assert add(1, 2) == 3

@pytest.mark.parametrize("a, b, c", [(1, 2, 3), pytest.param(2, 2, 4, id="two")])
@pytest.mark.slow
def test_rows(a, b, c):
    assert add(a, b) == c

def test_errors():
    with pytest.raises(TypeError, match="str") as caught:
        add("a", 1)
    assert caught.type is TypeError
    assert add(0.1, 0.2) == pytest.approx(0.3)
"""
UNITTEST = """
import unittest

class TestCases(unittest.TestCase):
    def setUp(self):
        self.two = 2
    def test_value(self):
        self.assertEqual(add(self.two, 2), 4)
    def test_error(self):
        with self.assertRaises(TypeError):
            add("a", 1)
    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertEqual(add(i, i), 2 * i)

if __name__ == "__main__":
    unittest.main()
"""
CLASS = """
from solution import add

class TestAdd:
    def setup_method(self):
        self.n = 3
    def test_a(self):
        assert add(1, 2) == self.n
"""
PLAIN = "def test_a():\n  assert add(1, 2) == 3\ndef test_b():\n  assert add(2, 2) == 4\n"
MODULE = "import solution as s\ndef test_a():\n  assert s.add(1, 2) == 3\n"
ALIAS = "from solution import add as plus\ndef test_a():\n  assert plus(1, 2) == 3\n"
STAR = "from solution import *\ndef test_a():\n  assert add(1, 2) == 3\n"
RANDOM_FIRST = "import random\nrandom.seed(1)\ndef test_a():\n  assert add(1, 2) == 3\n"
SELF_RUN = "def check(f):\n  assert f(1, 2) == 3\ndef test_check():\n  check(add)\ntest_check()\n"
FILES = [PYTEST, UNITTEST, CLASS, PLAIN, MODULE, ALIAS, STAR, RANDOM_FIRST, SELF_RUN]
RIGHT = "def add(a, b):\n    return a + b"


def judged(code: str, tests: Any, **more: Any) -> str:
    return CodeJudge().grade(code, read_tests(tests, **more)).verdict


@runs
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_tests_passes_with_the_right_program_only(file):
    assert judged(RIGHT, file) == "passed"
    assert judged(RIGHT, {"test": file, "entry_point": "add"}) == "passed"
    assert judged(RIGHT, read_tests(file).to_json()) == "passed"
    assert judged("def add(a, b):\n    return a - b", file) == "wrong_answer"
    assert judged("def add(a, b):\n    raise KeyError(a)", file) == "runtime_error"
    assert judged("def other(): pass", file) == "runtime_error"


@runs
def test_a_name_of_the_programs_module_is_never_that_of_another():
    file = "from solution import gcd\ndef test_a():\n  assert gcd(4, 6) == 2\n"
    assert judged("x = 1", file) == "runtime_error"
    assert judged("def gcd(a, b): return 2", file) == "passed"


@runs
@pytest.mark.parametrize("name", ["Solution().twoSum", "Solution.twoSum", "twoSum", "Adder().twoSum"])
def test_a_method_is_called_by_its_name_whatever_owns_it(name):
    owner = "Adder" if name.startswith("Adder") else "Solution"
    code = f"class {owner}:\n    def twoSum(self, a, b):\n        return a + b"
    assert judged(code, {"entry_point": name, "inputs": [[1, 2]], "outputs": [3]}) == "passed"
    check = "def check(candidate):\n    assert candidate(a=1, b=2) == 3"
    assert judged(code, {"entry_point": name, "test": check}) == "passed"
    assert judged(code, [{"input": "1\n2", "output": "3"}], fn_name=name) == "passed"
    assert function_name(name) == "twoSum"


@runs
def test_a_test_may_make_the_solution_itself():
    code = "class Solution:\n    def twoSum(self, a, b):\n        return a + b"
    assert judged(code, ["assert Solution().twoSum(1, 2) == 3"]) == "passed"
    assert judged(code, ["assert Solution().twoSum(1, 2) == 4"]) == "wrong_answer"


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("import pytest\n@pytest.fixture\ndef x(): return 1\ndef test_a(x): assert f(x)", "pytest.fixture"),
        ("from pytest import fixture\ndef test_a(): assert f()", "pytest.fixture"),
        ("from solution import f\ndef test_a(tmp_path): assert f(tmp_path)", "fixture 'tmp_path'"),
        ("class TestA:\n  def test_a(self, capsys): assert f()", "fixture 'capsys'"),
        ("import unittest\nfrom unittest.mock import patch\ndef test_a(): assert f()", "unittest.mock"),
        ("from unittest import mock\ndef test_a(): assert f()", "unittest.mock"),
        ("import pytest\ndef test_a(): pytest.importorskip('x'); assert f()", "pytest.importorskip"),
    ],
)
def test_what_no_sandbox_can_run_is_refused_when_it_is_read(file, says):
    with pytest.raises(DataError, match=says):
        read_tests(file)
    with pytest.raises(DataError, match=says):
        read_tests({"tests": [file], "fn_name": "f"})


def test_packages_that_tests_can_not_do_without_are_known():
    assert packages_of(
        "import numpy as np\nimport math\nfrom pandas.core import x\nfrom solution import f"
    ) == (
        "numpy",
        "pandas",
    )
    assert packages_of("try:\n  import numpy\nexcept ImportError:\n  numpy = None") == ()
    assert packages_of("def test_a():\n  import scipy.stats") == ("scipy",)
    tests = read_tests("import numpy\nfrom solution import f\ndef test_a(): assert f()")
    assert tests.packages == ("numpy",)
    assert read_tests(tests.to_json()) == tests


def test_what_runs_by_itself_is_left_alone():
    for code in ("assert f(1) == 2", "def check(c):\n  assert c(1)\ncheck(f)", SELF_RUN):
        assert runnable(code) == code


def _row(test: str) -> str:
    return (
        json.dumps({"question": "Add.", "test_cases": [test, "assert add(1, 2) == 3"], "fn_name": "add"})
        + "\n"
    )


def test_a_row_whose_tests_need_what_the_sandbox_lacks_is_refused_when_it_is_loaded(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(_row(PLAIN) + _row("import numpy\nassert add(numpy.int64(1), 2) == 3") + _row(UNITTEST))
    with pytest.raises(DataError, match=r"import numpy, which the sandbox does not have"):
        load_tasks(str(file))
    loaded = load_tasks(str(file), max_bad_share=0.5)
    assert len(loaded.tasks) == 2
    assert [reject.row for reject in loaded.rejects] == [2]
    packages = tmp_path / "packages"
    (packages / "numpy").mkdir(parents=True)
    assert len(load_tasks(str(file), packages=(str(packages),)).tasks) == 3


@runs
def test_a_test_imports_from_the_packages_of_the_sandbox():
    folder = Path("/tmp") / f"cadre-packages-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        (folder / "threes.py").write_text("three = 3\n")
        tests = read_tests(
            "import threes\nfrom solution import add\ndef test_a(): assert add(1, 2) == threes.three"
        )
        report = CodeJudge(sandbox=Sandbox(packages=(str(folder),))).grade(RIGHT, tests)
        assert report.verdict == "passed", report
        assert CodeJudge().grade(RIGHT, tests).verdict == "not_graded"
    finally:
        shutil.rmtree(folder)
