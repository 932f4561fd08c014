"""Rows of programming problems whose tests are one list, or public and private ones.

All give `inputs {problem, fn_name, starter_code, public_tests}` and `gold {private_tests}`, the tests in
the canonical form of `workflows/tools/code/cases.py`. Public tests may be shown to the policy, private
ones make its reward; no case is both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from workflows.data.chats import joined_texts
from workflows.data.fields import (
    BAD_FIELD,
    BAD_TESTS,
    NO_TESTS,
    Draft,
    Unusable,
    at,
    decoded,
    first_label,
    first_text,
    given,
    problem_text,
)
from workflows.data.packed import unpacked
from workflows.errors import CadreError
from workflows.tools.code.cases import read_tests

Tests = dict[str, Any]  # canonical: kind, fn_name, cases, checker, setup

PROBLEMS: Final = (
    *("problem", "question", "query"),
    "question_content",  # LiveCodeBench
    *("problem_description", "problem_statement", "description"),  # LeetCodeDataset, CodeContests
)
PROMPTS: Final = ("prompt", "raw_prompt", "messages", "conversations")
STARTERS: Final = ("starter_code", "extra_info.starter_code")
PUBLIC: Final = ("public_tests", "public_test_cases")
PRIVATE: Final = ("private_tests", "private_test_cases")
TESTS: Final = ("tests", "test_cases", "input_output")  # the last: APPS, TACO
ANSWERS: Final = (  # names that hold tests in some data sets and a text in others
    "answer",
    "label",
    "reward_model.ground_truth",
    "reward_model.answer",
    "reward_model.target",
    "reward_model",
    "extra_info.tests",
    "verification_info",  # SYNTHETIC
)
IDS: Final = ("uid", "query_id", "id", "task_id", "question_id")
SOURCES: Final = ("source", "data_source", "datasource", "extra_info.source")

FIRST_CASES_NOTE: Final = "tasks with one list of tests, whose first are public and the rest private"
ONE_CASE_NOTE: Final = "tasks without public tests: too few cases to show any"
SHOWN_NOTE: Final = "tasks whose private tests lost cases that the public ones show"

_FN_NAMES: Final = ("fn_name", "function_name", "func_name", "entry_point")
_FN_PLACES: Final = ("metadata", "extra_info", "extra_info.metadata", "label")
_TEST_KEYS: Final = frozenset({"input", "inputs", "stdin", "cases", *TESTS, *PUBLIC, *PRIVATE})
_SHARED: Final = (  # what an object of tests says of all of them
    *("fn_name", "function_name", "func_name", "checker_type", "special_judge", "checker", "checker_code"),
    *("metadata", "setup", "test_setup_code", "test_imports", "time_limit_seconds", "whitespace"),
)
_ASSERTS: Final = re.compile(r"\b(?:assert|raise|unittest)")
_HEADINGS: Final = re.compile(
    r"\A.*?^#{1,4} *Question: *\n?(?P<question>.*?)(?=^#{1,4} *(?:Format|Answer):|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)


def from_code(row: Mapping[str, Any], public_tests: int) -> Draft:
    """The problem, the tests and the rest are where the first of many names has them.

    The problem is the first of PROBLEMS that is a text, else all that the first of PROMPTS says, without
    the headings that wrap a question in some data sets. Tests are public and private ones by these
    names, on the row, in an object of tests or in `extra_info`; else the first list of TESTS or
    ANSWERS, of which the first `public_tests` cases are public.
    """
    text = next(filter(None, map(joined_texts, given(row, (*PROBLEMS, *PROMPTS)))), None)
    public, private = _found_tests(row)
    return code_draft(
        unwrapped(problem_text(text, "problem")),
        public,
        private,
        public_tests,
        fn_name=_fn_name(row),
        starter_code=first_text(row, STARTERS) or "",
        time_limit_seconds=row.get("time_limit_seconds"),
        task_id=first_label(row, IDS),
        split=first_label(row, ("split", "extra_info.split")),
        source=first_label(row, SOURCES),
    )


def code_draft(
    problem: str,
    public: Any,
    private: Any,
    public_tests: int,
    *,
    fn_name: str | None = None,
    starter_code: str = "",
    time_limit_seconds: float | None = None,
    solution: str | None = None,
    task_id: str | None = None,
    split: str | None = None,
    source: str | None = None,
) -> Draft:
    """A task from tests in any encoding; `public` is None where there is one list, `private`.

    Raises:
        Unusable: there is no test, or tests can't be read.
    """
    if time_limit_seconds is not None:
        if isinstance(time_limit_seconds, bool) or not isinstance(time_limit_seconds, int | float):
            raise Unusable(BAD_FIELD, f"time_limit_seconds is {time_limit_seconds!r:.60}, expected a number")
        private = private and {"time_limit_seconds": time_limit_seconds, "tests": private}
        public = public and {"time_limit_seconds": time_limit_seconds, "tests": public}
    shown, hidden, notes = _divided(
        None if public is None else read(public, problem, fn_name),
        read(private, problem, fn_name),
        public is None,
        public_tests,
    )
    inputs: dict[str, Any] = {
        "problem": problem,
        "fn_name": hidden["fn_name"] or fn_name,
        "starter_code": starter_code,
        "public_tests": shown,
    }
    if "time_limit_seconds" in hidden:
        inputs["time_limit_seconds"] = hidden["time_limit_seconds"]
    gold: dict[str, Any] = {"private_tests": hidden}
    if solution is not None:
        gold["solution"] = solution
    return Draft(inputs, gold, task_id, split, source, notes)


def read(tests: Any, problem: str, fn_name: str | None) -> Tests | None:
    """Tests in canonical form; None where there is no case.

    Raises:
        Unusable: they can't be read, or one of them asserts nothing.
    """
    if not tests:
        return None
    try:
        canonical: Tests = read_tests(tests, problem=problem, fn_name=fn_name).to_json()
    except (CadreError, ValueError, TypeError, KeyError) as error:
        raise Unusable(BAD_TESTS, f"its tests can't be read: {error}") from error
    if canonical["kind"] == "assert":
        for case in canonical["cases"]:
            if not _ASSERTS.search(case["code"]):
                raise Unusable(BAD_TESTS, f"a test asserts nothing: {case['code']!r:.60}")
    return canonical if canonical["cases"] else None


def assert_tests(cases: list[str], fn_name: str | None, setup: str = "") -> Tests:
    """Tests that are statements, one case each: a case passes where its statements raise nothing."""
    return {
        "kind": "assert",
        "fn_name": fn_name,
        "cases": [{"code": code} for code in cases],
        "checker": "standard",
        "setup": setup,
    }


def unwrapped(problem: str) -> str:
    """What stands between a heading `### Question:` and `### Format:` or `### Answer:`; else all of it."""
    found = _HEADINGS.match(problem)
    question = found["question"].strip() if found else ""
    return question or problem


def looks_like_tests(value: Any) -> bool:
    """Whether a value that may be anything holds tests: an object or list with the usual keys."""
    value = decoded(value)
    if isinstance(value, list) and value:
        value = value[0]
        if isinstance(value, str):
            return value.lstrip().startswith("assert")
    return isinstance(value, Mapping) and not _TEST_KEYS.isdisjoint(value)


def has_tests(row: Mapping[str, Any]) -> bool:
    """Whether a row has tests where `from_code` looks for them."""
    named = (*TESTS, *PUBLIC, *PRIVATE, *(f"extra_info.{name}" for name in (*PUBLIC, *PRIVATE)))
    return any(True for _ in given(row, named)) or any(map(looks_like_tests, given(row, ANSWERS)))


def _found_tests(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Public tests, or None where there is one list, and private ones, in the row's own encoding."""
    if sets := _sets(row):
        return sets
    candidates: Iterator[Any] = given(row, TESTS)
    for value in map(decoded, candidates):
        return _sets(value) or (None, value)
    for value in map(decoded, given(row, ANSWERS)):
        if looks_like_tests(value):
            return _sets(value) or (None, value)
    if sets := _sets(decoded(at(row, "extra_info"))):
        return sets
    raise Unusable(NO_TESTS, "no tests")


def _sets(value: Any) -> tuple[Any, Any] | None:
    """The public and the private tests of an object that names them, what it says of both added to each."""
    if not isinstance(value, Mapping):
        return None
    inner = decoded(value.get("tests"))
    if isinstance(inner, Mapping) and (sets := _sets(inner)):
        return sets
    public, private = (unpacked(next(given(value, names), None)) for names in (PUBLIC, PRIVATE))
    if private is None:
        return None if public is None else (None, _with_shared(value, public))
    # Named apart, but nothing public: that is what the data set says, not one list.
    return _with_shared(value, public) if public is not None else [], _with_shared(value, private)


def _with_shared(value: Mapping[str, Any], tests: Any) -> Any:
    shared = {key: value[key] for key in _SHARED if value.get(key) is not None}
    return {**shared, "tests": tests} if shared else tests


def _divided(
    shown: Tests | None, hidden: Tests | None, one_list: bool, count: int
) -> tuple[Tests, Tests, tuple[str, ...]]:
    """Public and private tests without a case in both, and what was decided."""
    notes: tuple[str, ...] = ()
    if hidden is None or one_list:
        tests = hidden or shown
    else:
        public = shown["cases"] if shown else []
        private = [case for case in hidden["cases"] if case not in public]
        if len(private) < len(hidden["cases"]):
            notes = (SHOWN_NOTE,)
        if private:
            return shown or {**hidden, "cases": []}, {**hidden, "cases": private}, notes
        tests = shown
    if tests is None:
        raise Unusable(NO_TESTS, "no tests")
    cases = tests["cases"]
    public = cases[: max(0, min(count, len(cases) - 1))]
    private = [case for case in cases[len(public) :] if case not in public]
    if not private:  # the same case over and over
        public, private = [], cases
    notes += (FIRST_CASES_NOTE if public else ONE_CASE_NOTE,) if count else ()
    return {**tests, "cases": public}, {**tests, "cases": private}, notes


def _fn_name(row: Mapping[str, Any]) -> str | None:
    places = [row, *(decoded(at(row, place)) for place in _FN_PLACES)]
    for place in places:
        if isinstance(place, Mapping) and (name := first_text(place, _FN_NAMES)):
            return name.strip()
    return None
