"""Token F1 and exact match of short answers, as published and in a stricter form for rewards.

Three modes:

- `official_hotpot`: the numbers of the HotpotQA evaluation script (arXiv:1809.09600).
- `official_squad`: the numbers of the SQuAD 2.0 evaluation script (arXiv:1806.03822), where two
  answers that both normalise to nothing match. SQuAD 1.1 gives the same for all other answers.
- `strict`: for rewards. The published normaliser deletes all ASCII punctuation, so that 3.5 is 35,
  -5 is 5 and C++ is C, and knows no Unicode. A policy finds such holes. See `_strict_tokens`.

What `strict` promises: `f1(x, [x])` and `exact_match(x, [x])` are 1 for every `usable` gold, an
empty prediction scores 0, and two empties never match. The official modes keep the scripts' own
answers there, also where they are odd.

What no mode does: segment words of languages without spaces other than Chinese and Japanese (Thai,
Khmer), drop articles of other languages than English, or know that "two" is "2".
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, get_args

from workflows.data.invisible import without_control, without_ignored

Mode = Literal["official_hotpot", "official_squad", "strict"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_FEW_WORDS: Final = 32
_CLOSED_ANSWERS: Final = frozenset({"yes", "no", "noanswer"})
_TRUTH: Final = frozenset({"true", "false"})  # as golds; "True" may well be a word of an answer


def f1(prediction: str, golds: Sequence[str], mode: Mode = "strict") -> float:
    """The best token F1 of `prediction` against any of `golds`, in [0, 1].

    Tokens are compared as multisets. In the modes `official_hotpot` and `strict`, where one side is
    yes, no or noanswer and the other is not the same, F1 is 0: "yes it is" is no half of "yes". In `strict`
    that holds for a gold of true or false, too.

    Raises:
        ValueError: `golds` is empty; there is nothing to compare with, which is not a score of 0.
    """
    return Golds(golds, mode).f1(prediction)


def exact_match(prediction: str, golds: Sequence[str], mode: Mode = "strict") -> float:
    """1.0 if `prediction` equals any of `golds` after normalising both, else 0.0.

    Raises:
        ValueError: `golds` is empty.
    """
    return Golds(golds, mode).exact_match(prediction)


class Golds:
    """The gold answers of a task, normalised once for the many predictions that they are compared with.

    Args:
        golds: in the mode.
        strictly: further golds, in the mode `strict`: see `for_reward`.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, golds: Sequence[str], mode: Mode = "strict", strictly: Sequence[str] = ()) -> None:
        if isinstance(golds, str):
            raise TypeError(f"golds must be a list of answers, got the text {golds!r}")
        if not golds and not strictly:
            raise ValueError("there is no gold answer to grade against")
        self._mode: Mode = mode
        self._golds = [_tokens(gold, mode) for gold in golds]
        self._strictly = Golds(strictly) if strictly else None

    @classmethod
    def for_reward(cls, golds: Sequence[str], mode: Mode = "strict") -> Golds:
        """The golds that can be matched. One of which the published normaliser leaves nothing, such as the
        letter A of a choice, is graded strictly in every mode: no answer at all would match it otherwise.

        Raises:
            ValueError: none can be matched.
        """
        matchable = [gold for gold in golds if usable(gold, mode)]
        vanished = [gold for gold in golds if not usable(gold, mode) and usable(gold)]
        if not matchable and not vanished:
            raise ValueError(f"gold has no answer that mode {mode!r} can match")
        return cls(matchable, mode, vanished)

    def f1(self, prediction: str) -> float:
        """See `f1`."""
        predicted = _tokens(prediction, self._mode)
        strictly = [self._strictly.f1(prediction)] if self._strictly else []
        return max([_f1_of_tokens(predicted, gold, self._mode) for gold in self._golds] + strictly)

    def exact_match(self, prediction: str) -> float:
        """See `exact_match`."""
        predicted = _tokens(prediction, self._mode)
        if predicted in self._golds and (self._mode != "strict" or bool(predicted)):
            return 1.0
        return self._strictly.exact_match(prediction) if self._strictly else 0.0


def normalised(answer: str, mode: Mode = "strict") -> tuple[str, ...]:
    """The words of an answer as grading compares them: answers with equal words are equal answers."""
    return _tokens(answer, mode)


def usable(gold: str, mode: Mode = "strict") -> bool:
    """Whether a gold answer can be matched at all: something is left of it after normalising."""
    return bool(_tokens(gold, mode))


def _f1_of_tokens(predicted: tuple[str, ...], gold: tuple[str, ...], mode: Mode) -> float:
    if predicted == gold:
        return 1.0 if predicted or mode == "official_squad" else 0.0
    if not predicted or not gold:
        return 0.0
    if mode != "official_squad" and (_is_closed(predicted) or _is_closed(gold)):
        return 0.0
    if mode == "strict" and len(gold) == 1 and gold[0] in _TRUTH:
        return 0.0
    common = _in_common(predicted, gold)
    if common == 0:
        return 0.0
    precision = common / len(predicted)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)  # in this order: bit-equal to the scripts


def _in_common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Words that both have, with repetitions."""
    if len(other) > _FEW_WORDS:
        return sum((Counter(one) & Counter(other)).values())
    left, common = list(other), 0  # for a few words a list is several times faster than counting
    for word in one:
        if word in left:
            left.remove(word)
            common += 1
    return common


def _is_closed(tokens: tuple[str, ...]) -> bool:
    return len(tokens) == 1 and tokens[0] in _CLOSED_ANSWERS


@lru_cache(maxsize=1 << 16)
def _tokens(text: str, mode: Mode) -> tuple[str, ...]:
    if mode == "strict":
        return _strict_tokens(text)
    if mode not in MODES:
        raise ValueError(f"unknown grading mode {mode!r}; one of {', '.join(MODES)}")
    return _official_tokens(text)


# The published normaliser.

_ASCII_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_PUNCTUATION_BYTES: Final = string.punctuation.encode("ascii")
_ARTICLE_WORDS: Final = frozenset({"a", "an", "the"})
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")


def _official_tokens(text: str) -> tuple[str, ...]:
    if text.isascii() and text.isprintable():  # letters, digits and spaces are left: articles are whole words
        words = text.lower().encode("ascii").translate(None, _PUNCTUATION_BYTES).decode("ascii").split()
        return tuple([word for word in words if word not in _ARTICLE_WORDS])
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split())


# The strict normaliser.

_LOOKALIKES: Final = {
    **dict.fromkeys(map(ord, "‘’‚‛′ʼ`´"), "'"),
    **dict.fromkeys(map(ord, "“”„‟″«»"), '"'),
    **dict.fromkeys(map(ord, "‐‑‒–−"), "-"),
    **dict.fromkeys(map(ord, "—―"), " "),  # a dash between words joins nothing
    **dict.fromkeys(map(ord, "⁄∕"), "/"),
}
_JOINED_WORDS: Final = re.compile(  # A-Team, Covid-19, 5-inch, AC/DC; each way begins with its sign: faster
    r"-(?:(?<=[^\W_]-)(?=[^\W\d_])|(?<=[^\W\d_]-)(?=\d))|/(?<=[^\W\d_]/)(?=[^\W\d_])"
)
_EMPHASIS: Final = re.compile(r"(?<!\w)(\*{1,3}|_{1,3})(?=\S)([^*_]+?)(?<=\S)\1(?!\w)")  # Markdown
_THOUSANDS: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_LIST_COMMA: Final = re.compile(r"[,;](?!\d)|(?<!\d)[,;]")
_INITIALISM: Final = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]?")  # u.s., u.s.a
_BY_CHARACTER: Final = re.compile(  # kana, Chinese characters
    r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
_SYMBOLS: Final = frozenset("#%&@*/\\")  # Unicode calls them punctuation, answers mean them


def _strict_tokens(text: str) -> tuple[str, ...]:
    """Words of an answer; signs, decimal points and symbols inside a word are part of it.

    - Unicode: compatible forms as one (NFKC: CO₂ is CO2, Ⅱ is II), case folded, invisible characters
      dropped; curly quotes, dashes and minus signs become their ASCII look-alikes. A superscript or a
      fraction behind a digit stays apart from it: 10² is not 102, 2½ not 21/2.
    - A hyphen or a slash between letters separates words as a blank does: "twenty-one" is "twenty one",
      "AC/DC" is "AC DC", "Covid-19" is "Covid 19". Between digits it stays: 2019-20, 24/7.
    - Punctuation falls at the edges of a word only, and a minus before a digit stays: -5, 3.5, 10:30 and
      C++ are words of their own. "1,000" is 1000 and "U.S." is us; "1,2" is not 12.
    - a, an and the fall where a bare word follows: "the Who" is who, but the A of "Vitamin A" and of
      "A" alone is no article.
    - Chinese characters and Japanese kana are one token each.
    - An answer of nothing but punctuation is kept as it is, so that "!" matches "!".
    """
    plain = text.isascii()  # most answers are; nothing of Unicode applies to them
    text = without_control(text)
    if plain:
        text = text.lower()
        cleaned = text.replace("`", "'")
    else:
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
        text = without_ignored(text)
        cleaned = unicodedata.normalize("NFKC", _apart_from_digits(text.translate(_LOOKALIKES)))
        cleaned = cleaned.translate(_LOOKALIKES)
    if "*" in cleaned or "_" in cleaned:
        cleaned = _EMPHASIS.sub(r"\2", cleaned)
    if "," in cleaned or ";" in cleaned:
        cleaned = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), cleaned)
        cleaned = _LIST_COMMA.sub(" , ", cleaned)
    if "-" in cleaned or "/" in cleaned:
        cleaned = _JOINED_WORDS.sub(" ", cleaned)
    raw = cleaned.split()
    if not plain:
        raw = [part for word in raw for part in _BY_CHARACTER.split(word) if part]
    words = [
        _strip_edges(word)
        for i, word in enumerate(raw)
        if not (word.lstrip("\"'([") in _ARTICLE_WORDS and _is_word(raw[i + 1 : i + 2]))
    ]
    return tuple(w for w in words if w) or tuple(text.split())


def _apart_from_digits(text: str) -> str:
    """A text of which NFKC makes no other number: a superscript or fraction behind a digit is set apart."""
    out: list[str] = []
    for character in text:
        if out and out[-1][-1:].isdigit() and character > "\x7f":
            kind = unicodedata.decomposition(character).partition(" ")[0]
            out.append({"<super>": "^", "<fraction>": " ", "<circle>": " "}.get(kind, ""))
        out.append(character)
    return "".join(out)


def _is_word(following: list[str]) -> bool:
    return bool(following) and bool(_strip_edges(following[0]))


def _strip_edges(word: str) -> str:
    if word.isalnum():
        return word
    if "." in word and _INITIALISM.fullmatch(word.strip("\"'()[]!?:")):
        return word.strip("\"'()[]!?:").replace(".", "")
    start, end = 0, len(word)
    while end > start and _is_edge(word[end - 1]):
        end -= 1
    while start < end and _is_edge(word[start]) and not _opens_number(word, start, end):
        start += 1
    return word[start:end]


def _is_edge(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in _SYMBOLS


def _opens_number(word: str, start: int, end: int) -> bool:
    """Whether a number such as -5, .5 or -.5 begins here."""
    return re.match(r"-?\.?\d", word[start:end]) is not None and word[start] in "-."
