"""Rows of mathematics: GSM8K, MATH and its kin. All give `inputs {problem}` and `gold {answers}`.

A gold answer that can't be told from its solution text makes the row unusable: a task whose gold is
nothing teaches a team to answer nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from workflows.data.fields import (
    BAD_GOLD,
    NO_GOLD,
    Draft,
    Unusable,
    at,
    first_label,
    first_text,
    given,
    joined_texts,
    last_user_text,
    number_text,
    problem_text,
)

PROBLEMS: Final = ("question", "problem", "query")
PROMPTS: Final = ("prompt", "raw_prompt")
ANSWERS: Final = (
    "reward_model.ground_truth",
    "reward_model.answer",
    "reward_model.target",
    "answer",
    "ground_truth",
    "target",
)
IDS: Final = ("query_id", "uid", "unique_id", "id", "task_id")
SOURCES: Final = (
    "data_source",
    "source",
    "dataset",
    "extra_info.data_source",
    "extra_info.source",
    "extra_info.dataset",
)
MAX_ANSWER_CHARS: Final = 500  # a longer text is a solution from which no answer could be told

_KNOWN_SETS: Final = (
    (re.compile(r"math[-_ ]?500"), "math-500"),
    (re.compile(r"amc[-_ ]?(?:20)?23|(?:20)?23[-_ ]?amc"), "amc23"),
    *(
        (re.compile(rf"aime[-_ ]?(?:20)?{year}(?!\d)|(?<!\d)(?:20)?{year}[-_ ]?aime"), f"aime{year}")
        for year in (24, 25, 26)
    ),
    (re.compile(r"gsm[-_ ]?8k"), "gsm8k"),
    (re.compile(r"deep[-_ ]?scaler"), "deepscaler"),
)
_NO_ANSWERS: Final = frozenset({"none", "null", "nan", "n/a", "[invalid]"})
_THOUSANDS: Final = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def from_gsm8k(row: Mapping[str, Any]) -> Draft:
    """`{question, answer}` of GSM8K (arXiv:2110.14168): the number after `####` is the answer."""
    problem = problem_text(row.get("question"))
    solution = row.get("answer")
    if not isinstance(solution, str):
        raise Unusable(NO_GOLD, f"the answer is {solution!r:.60}, expected a text with the number after ####")
    _, marker, last = solution.rpartition("####")
    if not marker:
        raise Unusable(NO_GOLD, f"the answer has no ####: {solution!r:.60}")
    answer = usable_answer(last)
    if _THOUSANDS.fullmatch(answer):
        answer = answer.replace(",", "")
    return Draft(
        {"problem": problem},
        {"answers": [answer]},
        first_label(row, IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, SOURCES),
    )


def from_math(row: Mapping[str, Any]) -> Draft:
    r"""The problem and its answers are where the first of many names has them.

    The problem is the first of PROBLEMS that is a text, else `prompt` or `raw_prompt` (a text, or what
    the user says last). The answers are the first of ANSWERS, else the last `\boxed{}` of `solution`.
    In an answer that is a whole solution, what its last box or its `####` holds counts.
    """
    return Draft(
        {"problem": problem_text(_problem(row), "problem")},
        {"answers": _answers(row)} | {key: row[key] for key in ("level", "type", "subject") if row.get(key)},
        first_label(row, IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, SOURCES)
        or known_set(str(at(row, key) or "") for key in ("url", "unique_id", "path")),
    )


def _problem(row: Mapping[str, Any]) -> str | None:
    if (text := first_text(row, PROBLEMS)) is not None:
        return text
    prompts = list(given(row, PROMPTS))
    return next(filter(None, map(last_user_text, prompts)), None) or next(
        (joined_texts(p) for p in prompts if isinstance(p, str)), None
    )


def _answers(row: Mapping[str, Any]) -> list[str]:
    for value in given(row, ANSWERS):
        return math_answers(value)
    solution = row.get("solution")
    if not isinstance(solution, str) or not solution.strip():
        raise Unusable(NO_GOLD, "no gold answer")
    if (found := _told_by(solution)) is None:
        raise Unusable(NO_GOLD, f"the solution boxes no answer: {solution[-60:]!r}")
    return [usable_answer(found)]


def math_answers(value: Any) -> list[str]:
    """Equally good answers: a text, a number, or a list of them."""
    answers = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise Unusable(NO_GOLD, f"the answer is {item!r:.60}, expected a text or a number")
        text = item if isinstance(item, str) else number_text(item)
        told = _told_by(text)
        answers.append(usable_answer(text if told is None else told))
    if not answers:
        raise Unusable(NO_GOLD, "no gold answer")
    return answers


def usable_answer(text: str) -> str:
    """The answer without blanks around it, if a grader can do something with it."""
    answer = text.strip()
    if not answer.strip(" $.,;:!?\\{}()[]") or answer.casefold() in _NO_ANSWERS:
        raise Unusable(BAD_GOLD, f"the gold answer {answer!r} is nothing that can be matched")
    if len(answer) > MAX_ANSWER_CHARS:
        raise Unusable(
            BAD_GOLD,
            f"the gold answer is a text of {len(answer)} characters that boxes no answer: {answer!r:.60}",
        )
    return answer


def _told_by(text: str) -> str | None:
    if "\\boxed" in text or "\\fbox" in text:
        return last_boxed(text)
    _, marker, last = text.rpartition("####")
    return last if marker else None


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` or `\fbox{…}` holds, braces balanced; also `\boxed 7`. None without one.

    Raises:
        Unusable: the braces of the last box are not balanced.
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        bare = re.match(r"[^\s$.,]+", text[start:])
        return bare[0] if bare else ""
    depth = 0
    for brace in re.finditer(r"(?<!\\)(?:\\\\)*([{}])", text[start:]):
        depth += 1 if brace[1] == "{" else -1
        if depth == 0:
            return text[start + 1 : start + brace.end() - 1]
    raise Unusable(BAD_GOLD, f"the braces of the last box are not balanced: {text[start:]!r:.60}")


def known_set(texts: Iterable[str]) -> str | None:
    """The name of a well-known set that one of these texts (a URL, an id, a path) speaks of."""
    return next(filter(None, map(_known_set, filter(None, texts))), None)


@lru_cache(maxsize=1024)  # a path is asked about once for every row of its file
def _known_set(text: str) -> str | None:
    return next((name for pattern, name in _KNOWN_SETS if pattern.search(text.lower())), None)
