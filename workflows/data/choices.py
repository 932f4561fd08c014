"""Multiple choice: the choices become lettered lines of the question, and the right one its gold.

MMLU, MMLU-Pro, ARC, CommonsenseQA, OpenBookQA, MedQA, AQuA and their kin give
`inputs {question, choices}` and `gold {answers: [letter, text of the choice]}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from workflows.data.chats import asked, first_asked
from workflows.data.fields import (
    BAD_GOLD,
    NO_GOLD,
    Draft,
    Unusable,
    decoded,
    first_label,
    given,
    number_text,
)

QUESTIONS: Final = ("question", "question_stem", "query", "problem")
CHOICES: Final = ("choices", "options")
GOLDS: Final = (
    *("answerkey", "answer_letter", "answer_idx", "answer_index", "correct", "gold", "label"),
    *("answer", "target", "ground_truth", "reward_model.ground_truth"),
)
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_IDS: Final = ("uid", "query_id", "id", "task_id", "question_id")
_SOURCES: Final = ("data_source", "source", "subject", "category")
_LETTERED: Final = re.compile(r"\(?([A-Z])\s*[).:]\s*(?=\S)")


def has_choices(row: Mapping[str, Any]) -> bool:
    """Whether a row asks a question, and has choices and which of them is right."""
    return (
        bool(_choices(row))
        and first_asked(row, QUESTIONS) is not None
        and any(True for _ in given(row, GOLDS))
    )


def from_choices(row: Mapping[str, Any]) -> Draft:
    """The question with its choices as lines `A. …`; the letter and the text of the right one are golds.

    The right choice is told by its letter or label, by its number from 0, or by its text. A question
    that holds the text of all its choices already is left as it is.
    """
    name = "problem" if "problem" in row and "question" not in row else "question"
    question, choices = asked(first_asked(row, QUESTIONS), name), _choices(row)
    if not choices:
        raise Unusable(NO_GOLD, "no choices: expected a list of texts in `choices` or `options`")
    right = _right(row, choices)
    if not all(text in question for text in choices.values()):
        lines = (f"{label}. {text}" for label, text in choices.items())
        question = "\n".join([question.rstrip(), "", *lines])
    return Draft(
        {name: question, "choices": [*choices.values()]},
        {"answers": list(dict.fromkeys([right, choices[right]]))},
        first_label(row, _IDS),
        first_label(row, ("split", "extra_info.split")),
        first_label(row, _SOURCES),
    )


def _choices(row: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the choices by their letters; empty where there are none."""
    for value in map(decoded, given(row, CHOICES)):
        if isinstance(value, Mapping) and isinstance(value.get("text"), list):  # ARC
            labels = value.get("label") or LETTERS
            return _labelled(zip(labels, value["text"], strict=False))
        if isinstance(value, Mapping):  # MedQA: {"A": text}
            return _labelled(value.items())
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            return _labelled((c.get("label", c.get("key")), c.get("text", c.get("value"))) for c in value)
        if isinstance(value, list) and len(value) > 1:
            return _from_texts(value)
    columns = [(letter, row.get(letter.lower())) for letter in LETTERS[:10]]  # CSV files of MMLU, C-Eval
    columns = [(letter, value) for letter, value in columns if value is not None]
    return _labelled(columns) if [letter for letter, _ in columns[:2]] == ["A", "B"] else {}


def _from_texts(values: list[Any]) -> dict[str, str]:
    """A list of choices; the letters that AQuA writes before each are not part of the text."""
    texts = [_text(value) for value in values]
    if None in texts or len(texts) > len(LETTERS):
        return {}
    matches = [_LETTERED.match(str(text)) for text in texts]
    if all(match and match[1] == letter for match, letter in zip(matches, LETTERS, strict=False)):
        texts = [str(text)[match.end() :] for text, match in zip(texts, matches, strict=True) if match]
    return {letter: str(text) for letter, text in zip(LETTERS, texts, strict=False)}


def _labelled(pairs: Any) -> dict[str, str]:
    choices = {str(label).strip(): _text(text) for label, text in pairs if text is not None}
    usable = len(choices) > 1 and all(
        text is not None and len(label) <= 2 and label.isalnum() for label, text in choices.items()
    )
    return {label: str(text) for label, text in choices.items()} if usable else {}


def _text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    return value.strip() if isinstance(value, str) and value.strip() else None


def _right(row: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """The label of the right choice."""
    labels, given_golds = list(choices), list(given(row, GOLDS))
    for gold in given_golds:
        if isinstance(gold, float) and gold.is_integer():
            gold = int(gold)
        if isinstance(gold, int) and not isinstance(gold, bool):
            if 0 <= gold < len(labels):
                return labels[gold]
            continue
        text = str(gold).strip()
        stripped = text.strip("().: ")
        if stripped in choices or stripped.upper() in choices:
            return stripped if stripped in choices else stripped.upper()
        same = [label for label, choice in choices.items() if choice == text]
        if same:
            return same[0]
        if text.isdecimal() and int(text) < len(labels):
            return labels[int(text)]
    shown = f"{given_golds[0]!r:.60}" if given_golds else "missing"
    cause = BAD_GOLD if given_golds else NO_GOLD
    raise Unusable(
        cause, f"the right choice is {shown}, expected one of {', '.join(labels)}, its number or text"
    )
