"""Which rows are of which data set, and who turns them into tasks.

A converter takes one decoded row and returns a `Draft`, or raises `Unusable`. To add a format, write
one and put it into FORMATS or CODE_FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from workflows.data.benchmark_rows import from_humaneval, from_mbpp
from workflows.data.chats import asked, chat, first_asked, joined_texts
from workflows.data.choices import from_choices, has_choices
from workflows.data.code_rows import code_draft, from_code, has_tests
from workflows.data.fields import (
    BAD_FIELD,
    NO_COLUMN,
    NO_GOLD,
    Converter,
    Draft,
    Unusable,
    at,
    first_text,
    given,
    has_path,
    label,
    names,
    problem_text,
)
from workflows.data.math_rows import from_gsm8k, from_math, inner_answer, is_mathematics, math_answers
from workflows.data.qa_rows import (
    ANSWERS,
    PROMPTS,
    coerced_answers,
    from_hotpotqa,
    from_nq_open,
    from_qa,
    qa_answers,
)
from workflows.errors import DataError, did_you_mean


def from_cadre(row: Mapping[str, Any], public_tests: int) -> Draft:
    """`{inputs: {…}, gold: {…}, task_id?, split?, source?}`: any task.

    The rules of question answering hold for `gold.answers`, those of mathematics where `inputs` has a
    `problem`, those of code for `gold.private_tests`.
    """
    inputs, gold = _object(row, "inputs"), _object(row, "gold")
    return replace(
        _native(inputs, gold, public_tests),
        task_id=label(row, "task_id") or label(row, "id"),
        split=label(row, "split"),
        source=label(row, "source"),
    )


def _native(inputs: Mapping[str, Any], gold: Mapping[str, Any], public_tests: int) -> Draft:
    if "question" in inputs:
        problem_text(inputs["question"])
    if "problem" in inputs and "private_tests" in gold:
        draft = code_draft(
            problem_text(inputs["problem"], "problem"),
            (inputs["public_tests"] or []) if "public_tests" in inputs else None,
            gold["private_tests"],
            public_tests,
            fn_name=inputs.get("fn_name"),
            starter_code=inputs.get("starter_code", ""),
        )
        return replace(draft, inputs={**inputs, **draft.inputs}, gold={**gold, **draft.gold})
    if "answers" not in gold:
        return Draft(inputs, gold)
    if "problem" in inputs:
        problem_text(inputs["problem"], "problem")
        return Draft(inputs, {**gold, "answers": math_answers(gold["answers"])})
    answers, notes = qa_answers(gold["answers"])
    return Draft(inputs, {**gold, "answers": answers}, notes=notes)


FORMATS: Final[Mapping[str, Converter]] = {
    "qa": from_qa,
    "hotpotqa": from_hotpotqa,
    "nq_open": from_nq_open,
    "math": from_math,
    "gsm8k": from_gsm8k,
    "choices": from_choices,
}
CODE_FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any], int], Draft]]] = {
    "cadre": from_cadre,
    "code": from_code,
    "humaneval": from_humaneval,
    "mbpp": from_mbpp,
}
# Formats whose rows a program makes: [data] path says what of, and the import path what makes them.
MADE_FORMATS: Final[Mapping[str, str]] = {
    "signal": "workflows.teams.signal:tasks",
    "clues": "workflows.data.clues:tasks",
    "reasoning_gym": "workflows.data.reasoning_gym:tasks",
    "seeds": "workflows.teams.game:seeds",
}
# What a row of another one of these in the same file is read as; within one, the first row decides.
FAMILIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("qa", "hotpotqa", "nq_open"), "question answering"),
    **dict.fromkeys(("math", "gsm8k"), "mathematics"),
    **dict.fromkeys(("code", "humaneval", "mbpp"), "code"),
    "choices": "multiple choice",
    "cadre": "any",
}
NAMES: Final = (*CODE_FORMATS, *FORMATS, *MADE_FORMATS)
EXPECTED: Final = (
    "cadre {inputs: {…}, gold: {…}}; qa, nq_open and hotpotqa {question, answer}; math and gsm8k "
    "{problem or question, answer or solution}; code {problem, tests}; choices {question, choices, answer}; "
    "humaneval and mbpp as published"
)


def converter(name: str, public_tests: int) -> Converter:
    """The converter of a format by its name; `public_tests` of one list of tests may be shown."""
    if (from_tests := CODE_FORMATS.get(name)) is not None:
        return lambda row: from_tests(row, public_tests)
    return FORMATS[name]


def detect(row: Mapping[str, Any]) -> str | None:
    """The format whose fields this row has, or None."""
    if "inputs" in row and "gold" in row:
        return "cadre"
    if "entry_point" in row and "test" in row and "prompt" in row:
        return "humaneval" if "task_id" in row else "mbpp"
    if "test_list" in row:
        return "mbpp"
    if "question" in row and ("supporting_titles" in row or "supporting_facts" in row):
        return "hotpotqa"
    if has_tests(row):
        return "code"
    if has_choices(row):
        return "choices"
    answer = row.get("answer")
    if "question" in row and isinstance(answer, str) and "####" in answer:
        return "gsm8k"
    if is_mathematics(row):
        return "math"
    is_chat = any(chat(prompt) for prompt in given(row, PROMPTS))
    if "question" in row and not is_chat and ("answer" in row or "answers" in row):
        return "nq_open"
    asks = is_chat or first_asked(row, ("question", "query")) is not None
    return "qa" if asks and any(True for _ in given(row, ANSWERS)) else None


def detect_beside(row: Mapping[str, Any], first: str) -> str:
    """The format of a row in a file whose first row is of format `first`.

    Another family than the first row's counts only where the row says so by itself: by its tests, its
    choices, or what marks mathematics. That a row could be a question with any answer says nothing.
    """
    if _tells_nothing(row):
        return first
    name = detect(row)
    if name is None or FAMILIES[name] in (FAMILIES[first], "question answering"):
        return first
    return name


# Names under which nothing says of what family a row is, unless the answer does.
_PLAIN: Final = frozenset(
    {"question", "answer", "answers", "golden_answers", "id", "_id", "split", "type", "level", "context"}
    | {"supporting_facts", "supporting_titles", "evidences"}
)


def _tells_nothing(row: Mapping[str, Any]) -> bool:
    """Whether a row is a plain question and answer: most rows are, and need no closer look."""
    if not row.keys() <= _PLAIN:
        return False
    answer = row.get("answer")
    if isinstance(answer, list):
        answer = answer[0] if answer else ""
    return (
        isinstance(answer, str)
        and not answer.lstrip().startswith(("[", "{", "assert"))
        and "####" not in answer
    )


_COLUMNS: Final = (
    "question",
    "problem",
    "answers",
    "tests",
    "public_tests",
    "private_tests",
    "fn_name",
    "starter_code",
    "time_limit_seconds",
    "id",
    "split",
    "source",
)
COLUMN_SETS: Final = (
    {"question", "answers"},
    {"problem", "answers"},
    {"problem", "tests"},
    {"problem", "private_tests"},
)


REQUIRED_COLUMNS: Final = frozenset({"question", "problem", "answers", "tests", "private_tests"})


def from_columns(columns: Mapping[str, str], public_tests: int) -> Converter:
    """A converter for rows of no known format.

    Args:
        columns: which column of the file holds what, dotted where it is inside another one. A
            question and its answers make a task of question answering, a problem and its answers one
            of mathematics, a problem and its tests one of code.

    Raises:
        DataError: these columns make no task, or another name is given.
    """
    for name in columns:
        if name not in _COLUMNS:
            raise DataError(
                f"[data] columns knows no {name!r}{did_you_mean(name, _COLUMNS)}; "
                f"one of {', '.join(_COLUMNS)}"
            )
    if not any(needed <= columns.keys() for needed in COLUMN_SETS):
        missing = "no answers" if "answers" not in columns else "no question and no problem"
        raise DataError(
            f"[data] columns names {missing}; write for example "
            'columns = {question = "query", answers = "target"}, or problem and answers for mathematics, '
            "or problem and tests for code"
        )
    return partial(_converted, columns=columns, public_tests=public_tests)


def _converted(row: Mapping[str, Any], columns: Mapping[str, str], public_tests: int) -> Draft:
    for name, column in columns.items():
        if name in REQUIRED_COLUMNS and not has_path(row, column):
            raise Unusable(NO_COLUMN, f"no column {column!r}; it has {names(row)}")
    return replace(
        _from_values({name: at(row, column) for name, column in columns.items()}, public_tests),
        task_id=label(row, columns["id"]) if "id" in columns else None,
        split=label(row, columns["split"]) if "split" in columns else None,
        source=label(row, columns["source"]) if "source" in columns else None,
    )


def _from_values(values: Mapping[str, Any], public_tests: int) -> Draft:
    if "tests" in values or "private_tests" in values:
        return code_draft(
            problem_text(joined_texts(values["problem"]) or values["problem"], "problem"),
            values.get("public_tests"),
            values.get("private_tests", values.get("tests")),
            public_tests,
            fn_name=first_text(values, ("fn_name",)),
            starter_code=first_text(values, ("starter_code",)) or "",
            time_limit_seconds=values.get("time_limit_seconds"),
        )
    if values["answers"] is None:
        raise Unusable(NO_GOLD, "no gold answer")
    if "problem" in values:
        problem = asked(values["problem"], "problem")
        return Draft({"problem": problem}, {"answers": math_answers(inner_answer(values["answers"]))})
    answers, notes = qa_answers(coerced_answers(values["answers"]))
    return Draft({"question": asked(values["question"])}, {"answers": answers}, notes=notes)


def _object(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    if not isinstance(value, Mapping) or not value:
        raise Unusable(BAD_FIELD, f"{name} is {value!r:.60}, expected an object that is not empty")
    return value
