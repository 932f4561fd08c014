"""Rows of question answering: HotpotQA, NQ-open, and the chat Parquet that RL trainers read.

All give `inputs {question}` and `gold {answers}`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from typing import Any, Final

from workflows.data.chats import asked, first_asked
from workflows.data.fields import (
    BAD_FIELD,
    BAD_GOLD,
    NO_GOLD,
    UNANSWERABLE,
    Draft,
    Unusable,
    decoded,
    first_label,
    given,
    label,
    number_text,
    text_list,
    truth_texts,
)
from workflows.data.invisible import without_control, without_ignored

QUESTIONS: Final = ("question", "query", "problem", "extra_info.question")
PROMPTS: Final = ("prompt", "raw_prompt", "messages", "conversations")
ANSWERS: Final = (
    "answer",
    "ground_truth",
    "target",
    "golden_answers",
    "extra_info.answer",
    "reward_model.ground_truth",
    "reward_model",
    "answers",
    "possible_answers",  # PopQA
    "verification_info.ground_truth",  # SYNTHETIC
)
ALIASES: Final = ("answer_aliases", "aliases")  # further golds, beside those of ANSWERS
IDS: Final = ("uid", "query_id", "id", "task_id")
SOURCES: Final = ("data_source", "source")

_INSIDE: Final = ("ground_truth", "answer", "target", "golden_answers")
_ANSWERABLE: Final = (("answerable", False), ("is_impossible", True))  # MuSiQue, SQuAD 2.0
MAX_LETTER: Final = 16  # characters of an answer that may be a letter and signs around it
_VANISHED_NOTE: Final = "gold answers left out that nothing can match"
_LETTER_NOTE: Final = "gold answers that are the letter A alone, which only strict grading can match"


def from_hotpotqa(row: Mapping[str, Any]) -> Draft:
    """HotpotQA (arXiv:1809.09600), as published and as on the hub; kind, level and titles stay in gold.

    The passages of the row go to a corpus instead: `workflows/data/hotpot_corpus.py`.
    """
    answers, notes = published_answers(row, ("answers", "answer"))
    gold: dict[str, Any] = {"answers": answers}
    gold |= {key: row[key] for key in ("type", "level") if row.get(key) is not None}
    titles = row.get("supporting_titles")
    if titles is None and (facts := row.get("supporting_facts")) is not None:
        titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts]
    if titles is not None:
        if not isinstance(titles, list):
            raise Unusable(BAD_FIELD, f"supporting_titles is {titles!r:.60}, expected a list of texts")
        gold["supporting_titles"] = list(dict.fromkeys(titles))
    inputs = {"question": asked(row.get("question"))}
    return Draft(inputs, gold, first_label(row, ("id", "_id")), label(row, "split"), notes=notes)


def from_nq_open(row: Mapping[str, Any]) -> Draft:
    """`{question, answer}` as in NQ-open (arXiv:1906.00300): one text or a list of equally good ones."""
    question = asked(row.get("question"))
    answers, notes = published_answers(row, ("answer", "answers"))
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

    The question is the first of QUESTIONS and PROMPTS that is a text, or what the user says last in a
    chat. The answers are the first of ANSWERS with something in it: a text, a list of texts, an object
    that has `ground_truth`, `answer`, `target` or `golden_answers`; those of ALIASES are added.
    """
    question = asked(first_asked(row, (*QUESTIONS, *PROMPTS)))
    _check_answerable(row)
    golds = next(filter(None, map(coerced_answers, given(row, ANSWERS))), None)
    answers, notes = qa_answers(_with_aliases(golds, row))
    return Draft(
        {"question": question},
        {"answers": answers},
        first_label(row, IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, SOURCES),
        notes,
    )


def published_answers(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The answers of a row as published, the first of `names` that it has; aliases are golds, too."""
    _check_answerable(row)
    value = next((row[name] for name in names if name in row), None)
    if (golds := _object_golds(value)) is not None:
        value = golds
    return qa_answers(_with_aliases(text_list(value), row))


def _check_answerable(row: Mapping[str, Any]) -> None:
    for name, refused in _ANSWERABLE:
        if row.get(name) is refused:
            raise Unusable(UNANSWERABLE, f"{name} is {str(refused).lower()}")


def _with_aliases(golds: Any, row: Mapping[str, Any]) -> Any:
    """The golds and, after them, the row's aliases of the answer. No gold stays no gold."""
    aliases = [alias for value in given(row, ALIASES) for alias in coerced_answers(value)]
    if not aliases or not isinstance(golds, str | list) or not golds:
        return golds
    return list(dict.fromkeys([*([golds] if isinstance(golds, str) else golds), *aliases]))


def _object_golds(value: Any) -> list[str] | None:
    """The golds of TriviaQA's `{value, aliases}` and SQuAD's `{text, answer_start}`; None for others."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("value"), str) and isinstance(value.get("aliases"), list):
        return list(dict.fromkeys([value["value"], *coerced_answers(value["aliases"])]))
    if "answer_start" in value and "text" in value:
        return list(dict.fromkeys(coerced_answers(value["text"])))
    return None


def coerced_answers(value: Any) -> list[str]:
    """Answers in any of the shapes that data sets have; empty where there are none.

    Unlike the system that we follow, an object without an answer is none, not its own text.
    """
    if isinstance(value, str):
        if not value.strip():
            return []
        inner = decoded(value)
        return coerced_answers(inner) if isinstance(inner, Mapping) else _texts(text_list(value))
    if isinstance(value, bool):
        return truth_texts(value)
    if isinstance(value, int | float):
        return [number_text(value)] if math.isfinite(value) else []  # a table's NaN is a missing value
    if isinstance(value, dict | Mapping):
        if (golds := _object_golds(value)) is not None:
            return golds
        inside = (coerced_answers(value.get(name)) for name in _INSIDE)
        return next((answers for answers in inside if answers), [])
    if isinstance(value, list):
        return [
            text for item in value if not isinstance(item, list | Mapping) for text in coerced_answers(item)
        ]
    return []


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else [text for text in value if text.strip()]


def qa_answers(value: Any) -> tuple[list[str], tuple[str, ...]]:
    """The answers that can be graded, and notes about others; the row is unusable if none can."""
    if value is None or value == []:
        raise Unusable(NO_GOLD, "no gold answer")
    value = text_list(value)
    answers = value if isinstance(value, list) else [value]
    if isinstance(value, str) and isinstance(decoded(value), Mapping):
        raise Unusable(BAD_GOLD, f"the gold answer is the text of an object: {value!r:.60}")
    answers = [text for a in answers for text in (coerced_answers(a) if isinstance(a, int | float) else [a])]
    if not answers:
        raise Unusable(NO_GOLD, "no gold answer")
    for answer in answers:
        if not isinstance(answer, str):
            raise Unusable(
                NO_GOLD, f"the answer is {answer!r:.60}, expected a text, a number or true or false"
            )
    gradable = [answer for answer in answers if not vanishes(answer)]
    if not gradable:
        raise Unusable(
            BAD_GOLD,
            f"the gold answer {answers[0]!r:.60} is nothing once case, punctuation and articles are dropped",
        )
    notes = (_VANISHED_NOTE,) * (len(gradable) < len(answers))
    return gradable, notes + (_LETTER_NOTE,) * (
        len(gradable[0]) < MAX_LETTER and all(map(is_letter, gradable))
    )


_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")


def vanishes(answer: str) -> bool:
    """Whether nothing is left of an answer after the normalising of SQuAD and HotpotQA's scripts.

    Those drop case, punctuation and articles, so "!" and "The" can't be told from no answer at all. An
    answer of invisible characters only (a zero-width space, a backspace) vanishes, too: strict grading
    drops those.
    A lone letter "A" is kept: it names the first of several choices, and strict grading matches it.
    """
    answer = without_ignored(without_control(answer))
    return not is_letter(answer) and not _ARTICLES.sub(" ", _words(answer)).strip()


def is_letter(answer: str) -> bool:
    """Whether an answer is the letter A, with whatever punctuation: a choice, not an article."""
    return _words(answer).strip() == "a"


def _words(answer: str) -> str:
    return answer.lower().translate(_PUNCTUATION)
