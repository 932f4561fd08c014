r"""Answers of mathematics as one spelling: Unicode, LaTeX and plain typing of the same thing look alike.

`clean` is a rewriting of text, no parser; what it makes is LaTeX that `math_answers` can take apart. Words
that stood in `\text{…}` are kept between two marks, since there, and only there, a single letter after a
number is a unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from rewards.grading.math_characters import CLOSE, OPEN, plain_characters, with_money_marked

_FUNCTIONS: Final = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|"
    "pi|infinity|alpha|beta|gamma|delta|theta|lambda|omega|phi|sigma|mu"
)
FUNCTION_NAMES: Final = frozenset(_FUNCTIONS.split("|"))


def _residue(match: re.Match[str]) -> str:
    return rf"\pmod{{{match[1] or match[2]}}}"


_PARTS: Final = {"half": 2, "third": 3, "quarter": 4, "fourth": 4}
_INTRODUCED: Final = (
    rf"\s*{OPEN}?\s*(?:approximately|approx\.?|about|roughly|around|exactly|equals|circa)"
    rf"(?![A-Za-z])\s*{CLOSE}?\s*|\\(?:approx|sim|simeq|cong)(?![A-Za-z])\s*"
)
# 3 (mod 5) in one spelling; without its parentheses \bmod is an operation
_MODULUS: Final = rf"{OPEN}?\s*\\?(?:[bp]?mod|modulo)(?![A-Za-z])\s*{CLOSE}?"
_RESIDUES: Final = (
    ("mod", rf"\(\s*{_MODULUS}\s*([^()]+?)\s*\)", r"\\pmod{\1}"),
    ("mod", r"\\p?mod(?![A-Za-z])\s*\{([^{}]+)\}|\\p?mod(?![A-Za-z])\s*(\w+)", _residue),
)


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    if not int(above) < int(below):
        return match[0]
    return rf"({whole}+\frac{{{above}}}{{{below}}})"


def _and_a_half(match: re.Match[str]) -> str:
    return rf"({match[1]}+\frac{{1}}{{{_PARTS[match[2]]}}})"


def _joined(match: re.Match[str]) -> str:
    return match[0].replace(" ", "")


def _function(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else rf"\{match[1]} "


def _marked(inside: str) -> str:
    if inside.strip() in FUNCTION_NAMES:
        return rf"\{inside.strip()} "
    # a number in \text{…} is a number
    return f"{OPEN}{inside}{CLOSE}" if re.search(r"[^\W\d_]", inside) else inside


_TEXT: Final = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|"
    r"operatorname|boldsymbol|bm|bf|rm)\s*\{"
)
_BOX: Final = re.compile(r"\\(?:boxed|fbox|framebox|emph|underline|bbox)\s*\{")
_REWRITES: Final = tuple(
    (needs, re.compile(pattern), new)  # what a text without `needs` can't match is not tried
    for needs, pattern, new in (
        *_RESIDUES,
        ("\\", r"\\(?:left|right)\s*\.", ""),
        ("\\", r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])", ""),
        ("", r"(?<=\d)(?:\\[,!;:]|\{,\})(?=\d{3})", ","),  # 1\,000 and 1{,}000
        ("", r"(?<![\d.,^_])([1-9]\d{0,2})((?: \d{3})+)(?![\d,/])", _joined),
        ("(", r"(?<![_^{\w.])(\d+(?:\.\d+)?)\s*\(", r"\1\\cdot("),
        ("", r"\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|\\\\\s*$|\\\s*$", " "),
        ("\\", r"\\[tdc]frac(?![A-Za-z])", r"\\frac"),
        ("", r"\\(?:leqslant|leq)(?![A-Za-z])|<=|=<", r"\\le "),
        ("", r"\\(?:geqslant|geq)(?![A-Za-z])|>=", r"\\ge "),
        ("", r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        ("\\", r"\\lt(?![A-Za-z])", "<"),
        ("\\", r"\\gt(?![A-Za-z])", ">"),
        ("\\", r"\\approx(?![A-Za-z])", "="),
        ("\\", r"\\l(?:brace)(?![A-Za-z])", r"\\{"),
        ("\\", r"\\r(?:brace)(?![A-Za-z])", r"\\}"),
        ("\\", r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        ("\\", r"\\(?:ast|star)(?![A-Za-z])", "*"),
        ("", r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        ("\\", r"\\%", "%"),
        ("\\", r"\\pm(?![A-Za-z])", r"\\pm "),
        ("\\", r"\\(begin|end)\{[bp]?matrix\*?\}", r"\\\1{pmatrix}"),
        ("*", r"\*\*", "^"),
        ("10", r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        ("\\", r"(?<=[\d.])\\(?:bar|dot)(?=\{\d+\})", r"\\overline"),
        (".(", r"(?<=\d\.)\((\d+)\)", r"\\overline{\1}"),
        ("sqrt", r"(?<![A-Za-z\\])sqrt(?=\s*[({\[])", r"\\sqrt"),
        ("\\", r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        ("\\", r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        ("\\frac", r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}"),
        ("\\", r"\\sqrt\s*(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        ("^", r"\^\s*(-?\d{2,}|-\d)", r"^{\1}"),
        ("", rf"{OPEN}[^{CLOSE}]*{CLOSE}|(?<![A-Za-z\\])({_FUNCTIONS})(?![A-Za-z])", _function),
        ("\\", r"\\infinity(?![A-Za-z])", r"\\infty "),
        # 2\frac{1}{2} is two and a half, where the fraction is a proper one
        ("\\frac", r"(?<![\d.}\)^])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", _mixed),
        ("/", r"(?<![\d.}\)/^])(\d+)\s+(\d+)/(\d+)(?![\d.])", _mixed),
        (
            "and",
            r"(?<![\d.}\)/^])(\d+)\s+and\s+(?:a|one)[\s-]+(half|third|quarter|fourth)(?![A-Za-z])",
            _and_a_half,
        ),
        # how a value is introduced is not part of it; an inequality is: "at least 5" stays
        ("", rf"^(?:{_INTRODUCED})+(?=[-+\d.(\\{OPEN}A-Za-z])", ""),
        ("", r"^\s*=\s*", ""),
    )
)


@lru_cache(maxsize=1 << 12)
def clean(answer: str) -> str:
    """The answer as LaTeX in one spelling, without delimiters, spacing, boxes and a final period."""
    text = unicodedata.normalize("NFC", answer)
    text = plain_characters(text)
    text = "".join(
        " " if c.isspace() else c for c in text if unicodedata.category(c) not in ("Cf", "Cc", "Co")
    )
    text = _without_delimiters(text.strip().strip("*`").strip())
    text = _unwrap(text, _BOX, lambda inside: inside)
    text = _unwrap(text, _TEXT, _marked)
    for needs, pattern, new in _REWRITES:
        if needs in text:
            text = pattern.sub(new, text)
    text = _in_braces(_in_braces(text, r"\sqrt"), "^")
    text = re.sub(r"\s+", " ", text).strip()
    while text and text[-1] in ".;,:":
        text = text[:-1].rstrip()
    return text


def key(text: str) -> str:
    """What two cleaned texts have in common if they are the same but for spaces, braces and marks."""
    text = re.sub(rf"[{OPEN}{CLOSE}]", "", re.sub(r"(?<=\d)\s+(?=\d)", "|", text.strip()))
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"\\(?:times|cdot)(?![A-Za-z])", "*", text)
    text = re.sub(r"(?<=[\^_])\{(\w)\}", r"\1", text)
    return text if not re.search(r"[A-Za-z]{3}", text) or "\\" in text else text.casefold()


def words(text: str) -> str:
    """A cleaned text as words, case folded: what is compared where an answer is no mathematics."""
    return re.sub(r"\s+", " ", re.sub(rf"[{OPEN}{CLOSE}]", "", text)).strip(" .!\"'").casefold()


def _without_delimiters(text: str) -> str:
    if text.replace(r"\$", "").count("$") % 2:  # an odd one is money
        text = text.replace("$", r"\$", 1) if r"\$" not in text else text
    text = re.sub(r"(?<!\\)\$|\\[()\[\]]", " ", text)
    return with_money_marked(text)


def _unwrap(text: str, opener: re.Pattern[str], around: Callable[[str], str]) -> str:
    while match := opener.search(text):
        end = closing(text, match.end() - 1)
        if end is None:  # never closed: what is there is the content
            return text[: match.start()] + around(text[match.end() :])
        text = text[: match.start()] + around(text[match.end() : end]) + text[end + 1 :]
    return text


def closing(text: str, start: int) -> int | None:
    """The position of the brace or parenthesis that closes the one at `start`."""
    opener = text[start]
    closer = {"{": "}", "(": ")", "[": "]"}[opener]
    depth, escaped = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == opener:
            depth += 1
        elif character == closer:
            depth -= 1
            if depth == 0:
                return position
    return None


def _in_braces(text: str, before: str) -> str:
    """`^(…)` and `\\sqrt(…)` with braces for the parentheses."""
    pattern = re.compile(re.escape(before) + r"\s*\(")
    while match := pattern.search(text):
        end = closing(text, match.end() - 1)
        if end is None:
            return text
        text = f"{text[: match.start()]}{before}{{{text[match.end() : end]}}}{text[end + 1 :]}"
    return text
