"""Rows of mathematics: GSM8K, MATH and its kin. All give `inputs {problem}` and `gold {answers}`.

A gold answer that can't be told from its solution text makes the row unusable: a task whose gold is
nothing teaches a team to answer nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from workflows.data.chats import asked, first_asked
from workflows.data.fields import (
    BAD_GOLD,
    NO_GOLD,
    UNDECIDABLE,
    Draft,
    Unusable,
    at,
    decoded,
    first_label,
    given,
    number_text,
    text_list,
)

PROBLEMS: Final = ("question", "problem", "query")
PROMPTS: Final = ("prompt", "raw_prompt", "messages", "conversations")
OWN_ANSWERS: Final = (  # names that only data sets of mathematics have
    "final_answer",  # DeepMath, OlympiadBench
    "expected_answer",  # OpenMathInstruct
    "gt_answer",  # SimpleRL
    "ground_truth_answer",
)
ANSWERS: Final = (
    "reward_model.ground_truth",
    "reward_model.answer",
    "reward_model.target",
    "verification_info.ground_truth",  # SYNTHETIC
    "answer",
    "ground_truth",
    "target",
    *OWN_ANSWERS,
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
# Words of other sources of mathematics: NuminaMath's, DAPO's and Big-Math's.
_MATH_SOURCE: Final = re.compile(
    r"(?:^|[^a-z])(?:math(?!ew)|numina|olympiads?(?![a-z])|aops|cn_k12|orz|dapo)"
)
_KINDS: Final = ("ability", "extra_info.ability", "task_type", "task")  # SYNTHETIC: verifiable_math
_MATH_KIND: Final = re.compile(r"(?:^|[^a-z])math")
_INSIDE: Final = ("ground_truth", "answer", "target", "value")
_NO_ANSWERS: Final = frozenset({"none", "null", "nan", "n/a", "[invalid]"})
_PROOFS: Final = frozenset({"proof", "notfound", "not found"})  # NuminaMath-1.5, OpenR1-Math
# A solution that is an answer as it stands (TRL's rows): no words, but those of LaTeX and a lone one.
_LATEX_WORDS: Final = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
MAX_BARE_CHARS: Final = 120
_THOUSANDS: Final = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def from_gsm8k(row: Mapping[str, Any]) -> Draft:
    """`{question, answer}` of GSM8K (arXiv:2110.14168): the number after `####` is the answer."""
    problem = asked(row.get("question"))
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

    The problem is the first of PROBLEMS and PROMPTS that is a text, or what the user says last in a
    chat. The answers are the first of ANSWERS, else the last `\boxed{}` of `solution`, else the solution
    where it is an expression without words. In an answer that is a whole solution, what its last box or
    its `####` holds counts. Proofs, and problems that the data set calls invalid, are unusable.
    """
    _check_decidable(row)
    return Draft(
        {"problem": asked(first_asked(row, (*PROBLEMS, *PROMPTS)), "problem")},
        {"answers": _answers(row)} | {key: row[key] for key in ("level", "type", "subject") if row.get(key)},
        first_label(row, IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, SOURCES)
        or known_set(str(at(row, key) or "") for key in ("url", "unique_id", "path")),
    )


def is_mathematics(row: Mapping[str, Any]) -> bool:
    """Whether a row with a gold says by itself that it is mathematics.

    It does by a `problem`, an ability or a type of task named so, a name that only mathematics has for
    an answer, a solution that boxes one or is one beside a chat, or a source that is a known set.
    """
    if not any(True for _ in given(row, (*ANSWERS, "solution"))):
        return False
    kinds = [str(at(row, path) or "").lower() for path in _KINDS]
    if "problem" in row or any(map(_MATH_KIND.search, kinds)):
        return True
    solution = row.get("solution")
    if any(True for _ in given(row, OWN_ANSWERS)) or "\\boxed" in str(solution):
        return True
    prompted = any(True for _ in given(row, PROMPTS))
    if prompted and isinstance(solution, str) and "```" not in solution and "def " not in solution:
        return True
    texts = [str(at(row, path) or "") for path in SOURCES]
    return known_set(texts) is not None or any(_MATH_SOURCE.search(text.lower()) for text in texts)


def inner_answer(value: Any) -> Any:
    """The answer inside an object that a column holds, `{"ground_truth": …}`; other values as they are."""
    inner = decoded(value)
    return next(given(inner, _INSIDE), None) if isinstance(inner, Mapping) else value


def _check_decidable(row: Mapping[str, Any]) -> None:
    if str(row.get("question_type")).lower() == "proof":
        raise Unusable(UNDECIDABLE, "question_type is 'proof'")
    valid = row.get("problem_is_valid")
    if isinstance(valid, str) and valid.lower() not in ("yes", "true", ""):
        raise Unusable(UNDECIDABLE, f"problem_is_valid is {valid!r:.40}")


def _answers(row: Mapping[str, Any]) -> list[str]:
    for value in given(row, ANSWERS):
        inner = inner_answer(value)
        return math_answers(value if inner is None else inner)
    solution = row.get("solution")
    if isinstance(solution, list | int | float):
        return math_answers(solution)
    if not isinstance(solution, str) or not solution.strip():
        raise Unusable(NO_GOLD, "no gold answer")
    if (boxed := _told_by(solution)) is not None:
        return [usable_answer(boxed)]
    if not _is_bare(solution):
        raise Unusable(NO_GOLD, f"the solution boxes no answer: {solution[-60:]!r}")
    return math_answers(solution)


def _is_bare(solution: str) -> bool:
    """Whether a solution is an answer and no text: `$\\frac{5}{6}$`, `12 cm`, `True`, `["7"]`."""
    if len(solution) > MAX_BARE_CHARS or "\n" in solution.strip():
        return False
    if text_list(solution) is not solution:
        return True
    words = _WORD.findall(_LATEX_WORDS.sub(" ", solution))
    number_with_unit = solution.strip()[:1].isdigit() and len(words) == 1
    return not words or number_with_unit or words == [solution.strip(" $.")]


def math_answers(value: Any) -> list[str]:
    """Equally good answers: a text, a number, or a list of them."""
    answers = []
    value = text_list(value)
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
    if answer.casefold().strip(" .") in _PROOFS:
        raise Unusable(UNDECIDABLE, f"the gold answer {answer!r} names no value that a grader can match")
    if isinstance(decoded(answer), Mapping):
        raise Unusable(BAD_GOLD, f"the gold answer is the text of an object: {answer!r:.60}")
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
