"""What a row of a known data set means: its question, its gold answers, its id.

A converter takes one decoded row and returns a `Draft`, or raises `Unusable` with the reason. To
add a format, write one and put it into FORMATS.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.errors import DataError, did_you_mean


class Unusable(Exception):
    """Why a row can't become a task."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has an id, a split and a source of its own."""

    inputs: Mapping[str, Any]
    gold: Mapping[str, Any]
    task_id: str | None = None
    split: str | None = None
    source: str | None = None


Converter = Callable[[Mapping[str, Any]], Draft]


def from_cadre(row: Mapping[str, Any]) -> Draft:
    """`{inputs: {…}, gold: {…}, task_id?, split?, source?}`: any task. QA rules hold for `gold.answers`."""
    inputs, gold = _object(row, "inputs"), dict(_object(row, "gold"))
    if "question" in inputs:
        _question(inputs["question"])
    if "answers" in gold:
        gold["answers"] = _answers(gold["answers"])
    task_id = _label(row, "task_id") or _label(row, "id")
    return Draft(inputs, gold, task_id, _label(row, "split"), _label(row, "source"))


def from_hotpotqa(row: Mapping[str, Any]) -> Draft:
    """HotpotQA (arXiv:1809.09600), as published and as on the hub; kind, level and titles stay in gold."""
    gold: dict[str, Any] = {"answers": _answers(row.get("answers", row.get("answer")))}
    gold |= {key: row[key] for key in ("type", "level") if row.get(key) is not None}
    titles = row.get("supporting_titles")
    if titles is None and (facts := row.get("supporting_facts")) is not None:
        titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts]
    if titles is not None:
        if not isinstance(titles, list):
            raise Unusable(f"supporting_titles is {titles!r:.60}, expected a list of texts")
        gold["supporting_titles"] = list(dict.fromkeys(titles))
    return Draft(
        {"question": _question(row.get("question"))},
        gold,
        _label(row, "id") or _label(row, "_id"),
        _label(row, "split"),
    )


def from_nq_open(row: Mapping[str, Any]) -> Draft:
    """`{question, answer}` as in NQ-open (arXiv:1906.00300): one text or a list of equally good ones."""
    return Draft(
        {"question": _question(row.get("question"))},
        {"answers": _answers(row.get("answer", row.get("answers")))},
        _label(row, "id"),
        _label(row, "split"),
    )


FORMATS: Final[Mapping[str, Converter]] = {
    "cadre": from_cadre,
    "hotpotqa": from_hotpotqa,
    "nq_open": from_nq_open,
}
EXPECTED: Final = (
    "cadre {inputs: {…}, gold: {…}}, hotpotqa {id, question, answer or answers, supporting_titles or "
    "supporting_facts}, nq_open {question, answer}"
)
_COLUMNS: Final = ("question", "answers", "id", "split")


def detect(row: Mapping[str, Any]) -> str | None:
    """The format whose fields this row has, or None."""
    if "inputs" in row and "gold" in row:
        return "cadre"
    if "question" not in row:
        return None
    if "supporting_titles" in row or "supporting_facts" in row:
        return "hotpotqa"
    return "nq_open" if "answer" in row or "answers" in row else None


def from_columns(columns: Mapping[str, str]) -> Converter:
    """A converter for rows of no known format.

    Args:
        columns: which column of the file holds the question, the answers, and, if there, the id and
            the split.

    Raises:
        DataError: `question` or `answers` is missing, or another name is given.
    """
    for name in columns:
        if name not in _COLUMNS:
            raise DataError(
                f"[data] columns knows no {name!r}{did_you_mean(name, _COLUMNS)}; "
                f"one of {', '.join(_COLUMNS)}"
            )
    if missing := [name for name in ("question", "answers") if name not in columns]:
        raise DataError(
            f"[data] columns names no {' and no '.join(missing)}; "
            'write for example columns = {question = "query", answers = "target"}'
        )

    def convert(row: Mapping[str, Any]) -> Draft:
        if absent := [column for column in columns.values() if column not in row]:
            raise Unusable(f"no column {absent[0]!r}{did_you_mean(absent[0], row)}; it has {_names(row)}")
        answers = _answers(row[columns["answers"]])
        return Draft(
            {"question": _question(row[columns["question"]])},
            {"answers": answers},
            _label(row, columns["id"]) if "id" in columns else None,
            _label(row, columns["split"]) if "split" in columns else None,
        )

    return convert


_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")


def vanishes(answer: str) -> bool:
    """Whether nothing is left of an answer after the normalising of SQuAD and HotpotQA's scripts.

    Those drop case, punctuation and articles, so "!" and "The" can't be told from no answer at all.
    """
    return not _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).strip()


def _answers(value: Any) -> list[str]:
    """The answers that can be graded; the row is unusable if none can."""
    if value is None or value == []:
        raise Unusable("no gold answer")
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list):
        raise Unusable(f"the answer is {value!r:.60}, expected a text or a list of texts")
    for answer in answers:
        if not isinstance(answer, str):
            raise Unusable(f"an answer is {answer!r:.60}, expected a text")
    if gradable := [answer for answer in answers if not vanishes(answer)]:
        return gradable
    raise Unusable(
        f"the gold answer {answers[0]!r:.60} is nothing once case, punctuation and articles are dropped"
    )


def _question(value: Any) -> str:
    if value is None:
        raise Unusable("no question")
    if not isinstance(value, str):
        raise Unusable(f"the question is {value!r:.60}, expected a text")
    if not value.strip():
        raise Unusable("the question is blank")
    return value


def _object(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    if not isinstance(value, Mapping) or not value:
        raise Unusable(f"{name} is {value!r:.60}, expected an object that is not empty")
    return value


def _label(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unusable(f"{name} is {value!r:.60}, expected a text or a whole number")
    if not str(value).strip():
        raise Unusable(f"{name} is blank")
    return str(value)


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "nothing"
