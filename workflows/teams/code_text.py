"""What a prompt says about public tests and about what running code on them gave.

Texts from outside (inputs, outputs, details of the judge) are cut in the middle past a limit, and the
text says where and how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workflows.tools.code.cases import AssertCase, CallCase, CodeTests, StdioCase, read_tests

NO_TESTS: Final = "no public tests, so nothing was run"
_VERDICTS: Final = {
    "wrong_answer": "wrong answer",
    "time_limit": "too slow",
    "memory_limit": "too much memory",
    "runtime_error": "an error",
    "output_limit": "too much output",
}


def cut_middle(text: str, limit: int) -> str:
    """`text`, or its first and last characters, `limit` of them, and how many are gone between them."""
    if len(text) <= limit:
        return text
    head, tail = (limit + 1) // 2, limit // 2
    return f"{text[:head]} …[{len(text) - limit} characters cut]… {text[len(text) - tail :]}"


def execution(task: Mapping[str, Any]) -> str:
    """How the code will be run: called as a function, or as a program with pipes."""
    if name := task.get("fn_name"):
        return f"Write the Python function {name}."
    return "Write a Python program: read standard input, print to standard output."


def code_form(task: Mapping[str, Any]) -> str:
    """What stands between the tags of a reply's form. A small model needs the name close by."""
    name = task.get("fn_name")
    return f"def {name}(…): …" if name else "your program"


def public_tests(task: Mapping[str, Any]) -> CodeTests | None:
    """The public tests of a task, in any encoding; None where it has no case.

    Raises:
        DataError: tests in no known encoding.
    """
    encoded = task.get("public_tests")
    tests = read_tests(encoded, fn_name=task.get("fn_name")) if encoded else None
    return tests if tests and tests.cases else None


def shown_tests(task: Mapping[str, Any], most: int, limit: int) -> list[str]:
    """The first `most` public tests, one text each: what goes in and what must come out."""
    tests = public_tests(task)
    return [_shown(case, tests.fn_name, limit) for case in tests.cases[:most]] if tests else []


def result_text(result: Mapping[str, Any], tests: CodeTests, limit: int) -> str:
    """How many public tests passed, and the first that did not: what was asked, expected and got.

    Args:
        result: the judge's report as JSON.
        tests: the public tests that it reports on.
        limit: characters of each input, output and detail.
    """
    if result["verdict"] == "not_graded":
        return f"no public test could be run: {cut_middle(result['reason'] or '', limit)}"
    counted = f"{result['passed']} of {result['total']} public tests passed"
    if result["verdict"] == "no_code":
        return f"{counted}: no code in the reply"
    failed = [i for i, report in enumerate(result["cases"]) if report["verdict"] != "passed"]
    if not failed:
        return counted
    report = result["cases"][failed[0]]
    lines = [f"{counted}. First failure, {_VERDICTS.get(report['verdict'], report['verdict'])}:"]
    if not result["skipped"]:  # otherwise which of the tests these are is not known
        lines += _told(tests.cases[failed[0]], tests.fn_name, limit)
    if report["detail"]:
        lines.append(f"Judge: {cut_middle(report['detail'], limit)}")
    return "\n".join(lines)


def _shown(case: StdioCase | CallCase | AssertCase, fn_name: str | None, limit: int) -> str:
    if isinstance(case, CallCase):
        return f"{_call(case, fn_name, limit)} → {cut_middle(repr(case.expected), limit)}"
    if isinstance(case, StdioCase):
        return f"Input:\n{_stripped(case.input, limit)}\nOutput:\n{_stripped(case.output, limit)}"
    return cut_middle(case.code, limit)


def _told(case: StdioCase | CallCase | AssertCase, fn_name: str | None, limit: int) -> list[str]:
    if isinstance(case, CallCase):
        asked, wanted = _call(case, fn_name, limit), cut_middle(repr(case.expected), limit)
    elif isinstance(case, StdioCase):
        asked, wanted = _stripped(case.input, limit), _stripped(case.output, limit)
    else:
        return [f"Test: {cut_middle(case.code, limit)}"]
    return [f"Input: {asked}", f"Expected: {wanted}"]


def _call(case: CallCase, fn_name: str | None, limit: int) -> str:
    return cut_middle(f"{fn_name}({', '.join(map(repr, case.args))})", limit)


def _stripped(text: str, limit: int) -> str:
    return cut_middle(text.rstrip("\n"), limit)
