"""Rows of question answering: HotpotQA, NQ-open, and the chat Parquet that RL trainers read.

All give `inputs {question}` and `gold {answers}`.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from workflows.data.fields import (
    BAD_FIELD,
    BAD_GOLD,
    NO_GOLD,
    Draft,
    Unusable,
    first_label,
    first_text,
    given,
    label,
    last_user_text,
    number_text,
    problem_text,
)

QUESTIONS: Final = ("question", "query", "problem", "extra_info.question")
PROMPTS: Final = ("prompt", "raw_prompt")
ANSWERS: Final = (
    "answer",
    "ground_truth",
    "target",
    "golden_answers",
    "extra_info.answer",
    "reward_model.ground_truth",
    "reward_model",
)
IDS: Final = ("uid", "query_id", "id", "task_id")
SOURCES: Final = ("data_source", "source")

_INSIDE: Final = ("ground_truth", "answer", "target", "golden_answers")
_VANISHED_NOTE: Final = "gold answers left out that nothing can match"


def from_hotpotqa(row: Mapping[str, Any]) -> Draft:
    """HotpotQA (arXiv:1809.09600), as published and as on the hub; kind, level and titles stay in gold.

    The passages of the row go to a corpus instead: `workflows/data/hotpot_corpus.py`.
    """
    answers, notes = qa_answers(row.get("answers", row.get("answer")))
    gold: dict[str, Any] = {"answers": answers}
    gold |= {key: row[key] for key in ("type", "level") if row.get(key) is not None}
    titles = row.get("supporting_titles")
    if titles is None and (facts := row.get("supporting_facts")) is not None:
        titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts]
    if titles is not None:
        if not isinstance(titles, list):
            raise Unusable(BAD_FIELD, f"supporting_titles is {titles!r:.60}, expected a list of texts")
        gold["supporting_titles"] = list(dict.fromkeys(titles))
    inputs = {"question": problem_text(row.get("question"))}
    return Draft(inputs, gold, first_label(row, ("id", "_id")), label(row, "split"), notes=notes)


def from_nq_open(row: Mapping[str, Any]) -> Draft:
    """`{question, answer}` as in NQ-open (arXiv:1906.00300): one text or a list of equally good ones."""
    question = problem_text(row.get("question"))
    answers, notes = qa_answers(row.get("answer", row.get("answers")))
    return Draft(
        {"question": question},
        {"answers": answers},
        label(row, "id"),
        label(row, "split"),
        label(row, "source"),
        notes,
    )


def from_qa(row: Mapping[str, Any]) -> Draft:
    """Rows of chat data sets: the question and the answers are where the first of many names has them.

    The question is the first of QUESTIONS that is a text, else what the user says last in `prompt`,
    else in `raw_prompt`. The answers are the first of ANSWERS with something in it: a text, a list
    of texts, or an object that has `ground_truth`, `answer`, `target` or `golden_answers`.
    """
    question = first_text(row, QUESTIONS)
    if question is None:
        question = next(filter(None, map(last_user_text, given(row, PROMPTS))), None)
    found = next(filter(None, map(coerced_answers, given(row, ANSWERS))), None)
    answers, notes = qa_answers(found)
    return Draft(
        {"question": problem_text(question)},
        {"answers": answers},
        first_label(row, IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, SOURCES),
        notes,
    )


def coerced_answers(value: Any) -> list[str]:
    """Answers in any of the shapes that data sets have; empty where there are none.

    Unlike the system that we follow, an object without an answer is none, not its own text.
    """
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [number_text(value)]
    if isinstance(value, dict | Mapping):
        inside = (coerced_answers(value.get(name)) for name in _INSIDE)
        return next((answers for answers in inside if answers), [])
    if isinstance(value, list):
        return [
            text for item in value if not isinstance(item, list | Mapping) for text in coerced_answers(item)
        ]
    return []


def qa_answers(value: Any) -> tuple[list[str], tuple[str, ...]]:
    """The answers that can be graded, and notes about others; the row is unusable if none can."""
    if value is None or value == []:
        raise Unusable(NO_GOLD, "no gold answer")
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list):
        raise Unusable(NO_GOLD, f"the answer is {value!r:.60}, expected a text or a list of texts")
    for answer in answers:
        if not isinstance(answer, str):
            raise Unusable(NO_GOLD, f"an answer is {answer!r:.60}, expected a text")
    gradable = [answer for answer in answers if not vanishes(answer)]
    if not gradable:
        raise Unusable(
            BAD_GOLD,
            f"the gold answer {answers[0]!r:.60} is nothing once case, punctuation and articles are dropped",
        )
    return gradable, (_VANISHED_NOTE,) * (len(gradable) < len(answers))


_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")


def vanishes(answer: str) -> bool:
    """Whether nothing is left of an answer after the normalising of SQuAD and HotpotQA's scripts.

    Those drop case, punctuation and articles, so "!" and "The" can't be told from no answer at all. An
    answer of invisible characters only (a zero-width space) vanishes, too: strict grading drops those.
    """
    if not answer.isascii():
        answer = "".join(c for c in answer if unicodedata.category(c) != "Cf")
    return not _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).strip()
