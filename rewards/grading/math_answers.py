r"""What kind of thing an answer is: a number, a list, a tuple, a set, an interval, words or an expression.

Graders that hand whole answers to a computer algebra system, or delete commas, take `1,2` for 12, `5 m` for
5 cm and an interval for a pair. So lists, brackets, names, units and literal numbers are read here, and only
single expressions go further. The rules:

- Commas, semicolons, `or` and `and` outside brackets make a list; but `1,000` is one number: one to three
  digits, then groups of three, no space.
- `[a, b)`, `(a, b)` and `a < x \le b` are intervals; `(a, b)` is a pair as well; `[a, b, c]` a tuple.
- `x = 5`, `f(x) = 5` and `x \in A` name their answer; of `x = 2 + 3 = 5` the last part counts.
- A literal number is exact: integer, decimal, fraction, mixed number, `a \times 10^{n}`, `1.5e3`,
  `0.\overline{3}`, with `%` (a hundredth), dozen, hundred, thousand, million, billion, trillion.
- A unit is what stands in `\text{…}` after a value, a degree sign, money before it, or up to three bare
  words of two letters and more after a literal number. A bare letter is a variable: `3k` is no 3.
- `12:00`, `1011_2` and `12 34` are no numbers; such answers are compared as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from rewards.grading.math_characters import CLOSE, OPEN
from rewards.grading.math_literals import GROUPS, literal
from rewards.grading.math_text import FUNCTION_NAMES, words
from rewards.grading.math_units import SCALES, is_product, share, trailing_unit

Kind = Literal["number", "expression", "words", "list", "tuple", "set", "interval", "union", "residue"]

_MAX_ITEMS: Final = 50


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, taken apart.

    `text` is cleaned LaTeX, or words. `value` is exact where `kind` is number; `digits` counts the
    significant digits of one written as a decimal. `open` says which ends of an interval are open.
    """

    kind: Kind
    text: str
    items: tuple[Answer, ...] = ()
    value: Fraction | None = None
    digits: int | None = None
    open: tuple[bool, bool] = (True, True)
    name: str | None = None
    unit: str | None = None


def read(text: str, *, thousands: bool = True) -> Answer:
    """Take a cleaned answer apart; with `thousands`, `1,000` is a number and no list."""
    parts = _split(text, thousands)
    if 1 < len(parts) <= _MAX_ITEMS and all(parts):
        if (unit := trailing_unit(parts[-1])[1]) and not any(trailing_unit(p)[1] for p in parts[:-1]):
            parts = [*parts[:-1], trailing_unit(parts[-1])[0]]
            return replace(_listed(parts), unit=unit)
        return _listed(parts)
    return _single(text)


def _listed(parts: list[str]) -> Answer:
    return Answer("list", ", ".join(parts), tuple(map(_single, parts)))


# --- one answer ---------------------------------------------------------------------------------------

_NAME: Final = re.compile(
    r"\s*(m?(?:\\angle\s*)?\\?[A-Za-z]+'*(?:_\{?\w+\}?)?(?:\(\w+(?:,\s*\w+)*\))?)\s*(?:=|\\(?:in|equiv)(?![A-Za-z]))\s*(.+)"
)
_RELATION: Final = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
_SYMBOL: Final = re.compile(r"\s*\\?[A-Za-z](?:[A-Za-z]{2,})?(?:_\{?\w\}?)?\s*")


def _single(text: str) -> Answer:
    text = text.strip()
    if (match := _NAME.fullmatch(text)) and _is_name(match[1]):
        last = _split_at(match[2], "=")[-1].strip()
        return replace(_unnamed(last), name=re.sub(r"[\s{}]", "", match[1]))
    return _unnamed(text)


def _is_name(text: str) -> bool:
    """Not of `xy = 6` or `\\sin(x) = 1`: those are equations."""
    head = re.match(r"\\?([A-Za-z]+)", text)
    assert head is not None
    if head[0].startswith("\\"):
        return head[1] not in FUNCTION_NAMES
    return (
        len(head[1]) == 1
        or head[1].isupper()
        or (len(head[1]) > 2 and not is_product(head[1], touching=False))
    )


def _unnamed(text: str) -> Answer:
    for reading in (_residue, _relation, _union, _bracketed, _plus_minus):
        if (found := reading(text)) is not None:
            return found
    return _scalar(text)


def _residue(text: str) -> Answer | None:
    """`3 \\pmod{5}`: a class of numbers, and not the number 3."""
    match = re.fullmatch(r"(.+?)\s*\\pmod\{([^{}]+)\}", text)
    return match and Answer("residue", text, (_scalar(match[1]), _scalar(match[2])))


def _relation(text: str) -> Answer | None:
    """`a < x \\le b`, `x > a` and `a < x` as the interval of x."""
    parts = _RELATION.split(text)
    if len(parts) not in (3, 5) or "=" in text or not all(part.strip() for part in parts):
        return None
    up = [sign in ("<", r"\le") for sign in parts[1::2]]
    closed = [sign.startswith("\\") for sign in parts[1::2]]
    if len(parts) == 5:
        low, symbol, high = parts[0], parts[2], parts[4]
        if up[0] != up[1] or not _SYMBOL.fullmatch(symbol):
            return None
        ends, is_open = (low, high), (not closed[0], not closed[1])
        if not up[0]:
            ends, is_open = (high, low), (is_open[1], is_open[0])
    else:
        left, right = parts[0], parts[2]
        if bool(_SYMBOL.fullmatch(left)) == bool(_SYMBOL.fullmatch(right)):
            return None
        symbol = left if _SYMBOL.fullmatch(left) else right
        bound = right if symbol is left else left
        bounded_above = up[0] == (symbol is left)
        ends = (r"-\infty", bound) if bounded_above else (bound, r"\infty")
        is_open = (True, not closed[0]) if bounded_above else (not closed[0], True)
    items = tuple(_scalar(end.strip()) for end in ends)
    return Answer("interval", text, items, open=is_open, name=re.sub(r"[\s{}]", "", symbol))


def _union(text: str) -> Answer | None:
    parts = [part.strip() for part in _split_at(text, r"\cup")]
    if len(parts) < 2 or not all(parts) or len(parts) > _MAX_ITEMS:
        return None
    return Answer("union", text, tuple(map(_unnamed, parts)))


def _bracketed(text: str) -> Answer | None:
    if text.startswith(r"\langle") and text.endswith(r"\rangle"):
        return Answer("tuple", text, tuple(map(_single, _split(text[7:-7], True))))
    if text.startswith("{") and text.endswith("}") and _closes(text) and len(_split(text[1:-1], True)) > 1:
        text = rf"\{text[:-1]}\}}"  # typed plainly; in LaTeX these braces would not show
    if text.startswith(r"\{") and text.endswith(r"\}") and _closes(text):
        inside = text[2:-2]
        if re.search(r"\\mid|\||:|\\ldots|\\dots", inside):
            return None  # a condition or an endless list: no list of members
        parts = _split(inside, True)
        return Answer("set", text, tuple(map(_single, parts))) if len(parts) <= _MAX_ITEMS else None
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]" or not _closes(text):
        return None
    parts = _split(text[1:-1], True)
    if not all(parts) or len(parts) > _MAX_ITEMS:
        return None
    if len(parts) == 1:
        return _unnamed(parts[0]) if text[0] + text[-1] in ("()", "[]") else None
    items = tuple(map(_single, parts))
    if len(parts) == 2 and text[0] + text[-1] != "()":
        return Answer("interval", text, items, open=(text[0] == "(", text[-1] == ")"))
    return Answer("tuple", text, items) if text[0] + text[-1] in ("()", "[]") else None


_PLUS_MINUS: Final = re.compile(r"\\pm(?![A-Za-z])")


def _plus_minus(text: str) -> Answer | None:
    if len(_PLUS_MINUS.findall(text)) != 1 or "\\mp" in text:
        return None
    both = [_PLUS_MINUS.sub(sign, text) for sign in "+-"]
    return Answer("list", text, tuple(_scalar(one.strip().removeprefix("+").strip()) for one in both))


# --- units, words, numbers ----------------------------------------------------------------------------

_WORD: Final = re.compile(
    rf"\\(?:begin|end)\{{\w+\}}|\\[A-Za-z]+|([A-Za-z]{{3,}})|{OPEN}([^{CLOSE}]*[A-Za-z]{{2}}[^{CLOSE}]*){CLOSE}"
)
_NOT_A_NUMBER: Final = re.compile(
    r":|\d[\s)}\]]*_|(?<![\d_^{])\d+\s+\d|\.\.|\.\d+\.\d|\b0[xXbBoO][0-9a-fA-F]"
)
_BASE: Final = re.compile(
    rf"[({{]*(\d[0-9A-Fa-f.]*|[A-Fa-f][0-9A-Fa-f]+(?=[)}}\s]*_[{{(\s]*16))[)}}]*\s*(?:"
    rf"_\s*[({{\s]*{OPEN}?\s*(?:base\s*)?(\w+)|{OPEN}?\s*\(?\s*(?:in\s+)?base[\s-]*{CLOSE}?\s*(\w+)"
    rf")\s*[{CLOSE})}}\s]*"
)
_BASE_NAMES: Final = {
    **{"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8"},
    **{"nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"},
}


def _scalar(text: str) -> Answer:
    text = GROUPS.sub(lambda m: m[0].replace(",", ""), text)
    if (match := _BASE.fullmatch(text)) is not None:
        base = match[2] or match[3]  # digits to a base are compared as they are written
        return Answer("words", f"{match[1].casefold()}_{_BASE_NAMES.get(base.casefold(), base)}")
    if (part := share(text)) is not None:
        return Answer("number", text, value=part)
    value, unit = trailing_unit(text)
    scale = Fraction(1)
    names = unit.split() if unit is not None else []
    while names and names[0] in SCALES:
        scale *= SCALES[names.pop(0)]
    if any(name in SCALES for name in names):
        return Answer("words", words(text))  # a unit between them: "5 dollars thousand"
    unit = " ".join(names) or None
    if value.endswith("%"):
        value, scale = value[:-1].strip(), scale * Fraction(1, 100)
    if (number := literal(value)) is not None:
        exact, digits = number
        return Answer("number", value, value=exact * scale, digits=digits, unit=unit)
    if scale != 1 and not _is_text(value):
        value = rf"({value})\cdot\frac{{{scale.numerator}}}{{{scale.denominator}}}"
    if _is_text(value) or not value:
        return Answer("words", words(text))
    return Answer("expression", _bare(value), unit=unit)


def _is_text(text: str) -> bool:
    if _NOT_A_NUMBER.search(text):
        return True
    for match in _WORD.finditer(text):
        touching = match.start() > 0 and text[match.start() - 1] in "0123456789)}"
        if match[2] or (match[1] and not is_product(match[1], touching=touching)):
            return True
    return False


# --- splitting outside brackets ------------------------------------------------------------------------

_TOKEN: Final = re.compile(rf"\\[A-Za-z]+|\\.|{OPEN}[^{CLOSE}]*{CLOSE}|\s+(?:or|and)\s+|.", re.DOTALL)
_BINDERS: Final = re.compile(rf"\s*(?:{OPEN})?\s*(?:or|and|,\s*and|,\s*or)\s*(?:{CLOSE})?\s*", re.IGNORECASE)


def _split(text: str, thousands: bool) -> list[str]:
    """At commas, semicolons, `or` and `and` outside brackets."""
    if thousands:
        text = GROUPS.sub(lambda m: m[0].replace(",", "\ue002"), text)
    parts = [[""]]
    for token, depth in _tokens(text):
        if depth == 0 and (token in (",", ";") or _BINDERS.fullmatch(token)):
            parts.append([""])
        else:
            parts[-1].append(token)
    found = ["".join(part).replace("\ue002", ",").strip() for part in parts]
    # "1, 2, and 3" has an empty part between its comma and its and
    return (
        [part for i, part in enumerate(found) if part or i in (0, len(found) - 1)]
        if len(found) > 1
        else found
    )


def _split_at(text: str, separator: str) -> list[str]:
    parts = [[""]]
    for token, depth in _tokens(text):
        if depth == 0 and token == separator:
            parts.append([""])
        else:
            parts[-1].append(token)
    return ["".join(part) for part in parts]


def _tokens(text: str) -> list[tuple[str, int]]:
    """Tokens with their depth; any closing bracket closes any opening one, as in `[1, 2)`."""
    found, depth = [], 0
    for token in _TOKEN.findall(text):
        if token in ("(", "[", "{", r"\{", r"\langle"):
            depth += 1
        elif token in (")", "]", "}", r"\}", r"\rangle"):
            depth -= 1
        found.append((token, depth))
    return found


def _closes(text: str) -> bool:
    """Whether the bracket that opens the text closes at its end, and not before."""
    depths = [depth for _, depth in _tokens(text)]
    return bool(depths) and depths[-1] == 0 and all(depth > 0 for depth in depths[:-1])


def _bare(text: str) -> str:
    return re.sub(rf"[{OPEN}{CLOSE}]", " ", text).strip()
