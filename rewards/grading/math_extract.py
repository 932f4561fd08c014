r"""Which part of a text is the answer that it states: tags, boxes, `####`, a line "answer: …", a last number.

Every pattern here reads a text once, however often a rambling reply opens what it never closes.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal, NamedTuple

from workflows.thinking import after_thinking

MAX_ANSWER_CHARACTERS: Final = 2000

Fallback = Literal["none", "whole", "text", "number"]


class Stated(NamedTuple):
    """All statements of one kind in a text, in order; `cut` where the last one was begun and never ended."""

    answers: list[str]
    cut: bool


def extract_answer(text: str, fallback: Fallback = "none") -> str | None:
    r"""The final answer that a text states, or None.

    Thoughts (`<think>…</think>`) state nothing. In this order, the last that is not blank of:

    1. `<final_answer>…</final_answer>` or `<answer>…</answer>`, in any case of letters;
    2. `\boxed{…}` with balanced braces; a box inside a tag is opened too. Boxes that only `or`, `and` or a
       comma joins are one list: `\boxed{7} or \boxed{8}` is "7, 8", not 8;
    3. a line that begins with `####`, as GSM8K writes it;
    4. a line with `answer:` or `answer is`, to the end of its sentence. A sentence behind it is left out
       where it has no number and takes nothing back: "I hope it is correct."

    A later statement of the same kind that was cut off (`\boxed{7} … it is \boxed{8`) takes the earlier one
    back: there is no answer, whatever the fallback.

    Where there is none of these, `fallback` says what is taken: nothing; the whole text, if it is one line
    ("whole") or in any case ("text"); or its last number (`last_number`). An answer of more than
    `MAX_ANSWER_CHARACTERS` is none.
    """
    text = after_thinking(text)
    for statements in (_tags, boxes, _hashes, _lines):
        answers, cut = statements(text)
        if cut:
            return None
        if answers := [answer.strip() for answer in answers if answer.strip()]:
            inner = boxes(answers[-1])
            if inner.cut:
                return None
            filled = [box.strip() for box in inner.answers if box.strip()]
            return _short(filled[-1] if filled else answers[-1])
    if fallback == "text" or (fallback == "whole" and "\n" not in text.strip()):
        return _short(text.strip())
    if fallback == "number" and (number := last_number(text)):
        return _short(number)
    return None


def _short(answer: str) -> str | None:
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARACTERS else None


# --- tags and boxes -----------------------------------------------------------------------------------

_TAG: Final = re.compile(r"<(/?)(final_answer|answer)>", re.IGNORECASE)
_HALF_A_TAG: Final = re.compile(
    r"<(?:f(?:i(?:n(?:a(?:l_?)?)?)?)?|(?:final_)?a(?:n(?:s(?:w(?:er?)?)?)?)?)\Z", re.I
)
_BRACE: Final = re.compile(r"(\\(?:boxed|fbox)\s*\{)|(\\.|\{)|(\})", re.DOTALL)
_HALF_A_BOX: Final = re.compile(r"\\(?:b(?:o(?:x(?:ed?)?)?)?|f(?:b(?:ox?)?)?)\s*\Z")
_JOINS_BOXES: Final = re.compile(
    r"[\s$]*(?:\\[()\[\]][\s$]*)*(?:[,;]|[,;]?\s*(?:\\text\{)?\s*(?:or|and)\b\s*\}?)[\s$]*(?:\\[()\[\]][\s$]*)*"
)
_LONGEST_JOIN: Final = 40


def _tags(text: str) -> Stated:
    answers, opened = [], dict[str, int]()
    for match in _TAG.finditer(text):
        name = match[2].lower()
        if not match[1]:
            opened[name] = match.end()
        elif name in opened:
            answers.append(text[opened.pop(name) : match.start()])
    return Stated(answers, bool(opened) or (bool(answers) and _ends_in(_HALF_A_TAG, text)))


def boxes(text: str) -> Stated:
    """What stands in the outermost closed boxes; boxes that are only joined by a word or comma as a list."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []  # where the content of a box begins; -1 for any other brace
    for match in _BRACE.finditer(text):
        if match[1]:
            opened.append(match.end())
        elif match[2] == "{":
            opened.append(-1)
        elif match[3] and opened and (start := opened.pop()) >= 0:
            while spans and spans[-1][0] > start:
                spans.pop()  # it is inside this one
            spans.append((start, match.start()))
    cut = any(start >= 0 for start in opened) or (bool(spans) and _ends_in(_HALF_A_BOX, text))
    return Stated(_joined(text, spans), cut)


def _joined(text: str, spans: list[tuple[int, int]]) -> list[str]:
    answers: list[str] = []
    last_end = -1
    for start, end in spans:
        content = text[start:end]
        opener = text.rfind("\\", max(0, start - 20), start)
        gap = text[last_end + 1 : opener] if answers and 0 <= opener - last_end <= _LONGEST_JOIN else None
        if gap is not None and answers[-1].strip() and _JOINS_BOXES.fullmatch(gap):
            if content.strip() != answers[-1].strip():
                answers[-1] = f"{answers[-1].strip()}, {content.strip()}"[: MAX_ANSWER_CHARACTERS + 1]
        else:
            answers.append(content)
        last_end = end
    return answers


def _ends_in(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text[-20:]) is not None


# --- lines --------------------------------------------------------------------------------------------

_HASHES: Final = re.compile(r"^[ \t]*####[ \t]*(\S.*)$", re.MULTILINE)
_NO_HASHES: Final = re.compile(r"(?:\A|\n)[ \t]*####\s*\Z")
_HEAD: Final = re.compile(r"\banswer\b(?:\*\*)?(?:[ \t]*:|[ \t]+is\b[ \t]*:?)(?:\*\*)?[ \t]*", re.IGNORECASE)
_LINE: Final = re.compile(rf"{_HEAD.pattern}(\S.*)$", re.IGNORECASE | re.MULTILINE)
_NO_LINE: Final = re.compile(rf"{_HEAD.pattern}[*\s]*\Z", re.IGNORECASE)
_LEADING: Final = re.compile(r"(?:(?:therefore|thus|hence|then|simply|just|clearly|indeed)\b[,:]?\s*)+", re.I)
_SENTENCE_END: Final = re.compile(
    r"(?<=[^\s.])[.!?](?:\*\*|[\"'”’)\]}])*(?=\s+\S)|,?\s+(?=(?:because|since|I)\b)"
)
_TAKES_BACK: Final = re.compile(
    r"[\d\\$=]|\b(?:or|not|no|wait|actually|maybe|perhaps|but|however|sorry|rather|instead|otherwise|oops|hmm+|"
    r"could|can|might|may|also|possibly|either|alternatively|wrong|incorrect|correction|unless|except|mistake)\b",
    re.IGNORECASE,
)


def _hashes(text: str) -> Stated:
    return Stated(_HASHES.findall(text), _NO_HASHES.search(text[-200:]) is not None)


def _lines(text: str) -> Stated:
    answers = _LINE.findall(text)
    return Stated([*answers[:-1], *map(_sentence, answers[-1:])], _NO_LINE.search(text[-200:]) is not None)


def _sentence(line: str) -> str:
    """The statement without what follows it, where that has no number and takes nothing back."""
    *_, line = _HEAD.split(line)  # "Final answer: the answer is 5"
    line = _LEADING.sub("", line, count=1) if _LEADING.match(line) else line
    if len(line) > 4 * MAX_ANSWER_CHARACTERS:
        return line
    for end in _SENTENCE_END.finditer(line):
        rest = line[end.end() :]
        if line[: end.start()].replace(r"\$", "").count("$") % 2 == 0 and not _TAKES_BACK.search(rest):
            return line[: end.start()]
    return line


# --- numbers in prose ---------------------------------------------------------------------------------

_DIGITS: Final = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+"
_NUMBER: Final = re.compile(
    rf"(?P<before>[\^_]\s*\{{?\s*-?|[A-Za-z])?(?P<sign>(?<![\w)\]}}])-\s*(?=[$\d.\\]))?\\?\$?"
    rf"(?P<number>\\[dt]?frac\s*(?:\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|\d\s*\d)"
    rf"|(?:{_DIGITS})(?:[eE][-+]?\d+(?!\w)|\s*(?:\\times|\\cdot|×|\*|x)\s*10\s*\^\s*\{{?[-+]?\d+\}}?)?"
    rf"(?:\s*\\[dt]?frac\s*\{{\d+\}}\{{\d+\}}|\s\d+/\d+|\s*/\s*\d+|:\d+)?"
    rf"(?:\s*\^\s*\{{?[-+]?\d+\}}?|_\{{?\w+\}}?)?(?:\s*\\?%)?"
    rf"(?:\s+(?:hundred|thousand|million|billion|trillion|dozen|percent)\b)*)",
    re.IGNORECASE,
)
_OR: Final = re.compile(r"\s*(?:,\s*)?or\s+", re.IGNORECASE)


def last_number(text: str) -> str | None:
    r"""The last number of a text, with all that belongs to it; None where there is none.

    Unicode's minus signs, digits and fractions count; `.75` is 0.75. A hyphen is a sign unless a word or
    number stands right before it, so "3-4" ends in 4. Exponents, indices and digits inside a word (`x^2`,
    `H2O`) are no numbers of their own; `2^{10}`, `\frac{1}{2}`, `12:30`, `50%` and "5 million" are one
    number each. Two last numbers that only an "or" joins are one list: a guess of two is no answer.
    """
    from rewards.grading.math_text import plain_characters

    text = plain_characters(unicodedata.normalize("NFC", text))
    numbers = [match for match in _NUMBER.finditer(text) if not match["before"]]
    if not numbers:
        return None
    last = _spelled(numbers[-1])
    if len(numbers) > 1 and _OR.fullmatch(text[numbers[-2].end() : numbers[-1].start()]):
        return f"{_spelled(numbers[-2])}, {last}"
    return last


def _spelled(match: re.Match[str]) -> str:
    return ("-" if match["sign"] else "") + match["number"].strip()
