r"""Literal numbers, exact, and the units after or before them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from rewards.grading.math_text import CLOSE, OPEN

_MAX_EXPONENT: Final = 1000  # of ten

# 1,000: one to three digits, then groups of three
GROUPS: Final = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_DECIMAL: Final = r"\d+(?:\.\d*)?|\.\d+"
_LITERAL: Final = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:"
    rf"(?P<number>{_DECIMAL})(?:\s*(?:(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?|[eE])(?P<exponent>[-+]?\d+)\}}?)?"
    rf"|(?P<repeating>\d*\.\d*)\\overline\s*\{{(?P<period>\d+)\}}"
    rf"|10\s*\^\s*\{{?(?P<power>[-+]?\d+)\}}?"
    rf"|\((?P<whole>\d+)\+\\frac\{{(?P<part>\d+)\}}\{{(?P<parts>\d+)\}}\)"
    rf"|\\frac\s*\{{\s*(?P<above_sign>[-+]?)\s*(?P<above>{_DECIMAL})\s*\}}\s*\{{\s*(?P<below>{_DECIMAL})\s*\}}"
    rf"|\(?(?P<top>{_DECIMAL})\)?\s*/\s*\(?(?P<bottom>{_DECIMAL})\)?"
    rf")"
)


def literal(text: str) -> tuple[Fraction, int | None] | None:
    """The exact value of a literal number and, of a decimal, its significant digits."""
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        return None
    g = match.groupdict()
    sign = -1 if g["sign"] == "-" else 1
    exponent = int((g["exponent"] or g["power"] or "0")[:8])
    if abs(exponent) > _MAX_EXPONENT:
        return None
    if g["number"] is not None:
        value = Fraction(g["number"]) * Fraction(10) ** exponent
        digits = len(g["number"].replace(".", "").lstrip("0")) if "." in g["number"] else None
        return sign * value, digits
    if g["repeating"] is not None:
        fixed = len(g["repeating"].partition(".")[2])
        period = Fraction(int(g["period"]), (10 ** len(g["period"]) - 1) * 10**fixed)
        return sign * (Fraction(g["repeating"] + "0") + period), None
    if g["power"] is not None:
        return sign * Fraction(10) ** exponent, None
    if g["whole"] is not None:
        return sign * (int(g["whole"]) + Fraction(int(g["part"]), int(g["parts"]))), None
    above, below = Fraction(g["above"] or g["top"]), Fraction(g["below"] or g["bottom"])
    if below == 0:
        return None
    return sign * (-1 if g["above_sign"] == "-" else 1) * above / below, None


_UNIT_TEXT: Final = re.compile(
    rf"(.*?[\w}})\]%!])?\s*{OPEN}([^{CLOSE}{OPEN}]*){CLOSE}\s*(?:\^\s*\{{?\s*([23])\s*\}}?)?\s*"
)
_UNIT_WORDS: Final = re.compile(
    r"(.*?\d(?:\s*[)}])*)\s*((?:[A-Za-z]{2,}\.?)(?:\s+(?:per\s+)?[A-Za-z]{2,}\.?){0,2})(?:\^\{?([23])\}?)?"
)
_NO_UNITS: Final = frozenset(
    {"or", "and", "to", "if", "mod", "more", "less", "than", "times", "over", "plus", "minus", "is", "not"}
    | {"of", "from", "when", "where", "modulo", "base", "choose"}
)
SCALES: Final = {
    "dozen": Fraction(12),
    "hundred": Fraction(100),
    "thousand": Fraction(1000),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
    "percent": Fraction(1, 100),
    "pct": Fraction(1, 100),
}
_SAME_UNITS: Final = {
    "centimeter": "cm",
    "centimetre": "cm",
    "millimeter": "mm",
    "millimetre": "mm",
    "kilometer": "km",
    "kilometre": "km",
    "meter": "m",
    "metre": "m",
    "inch": "in",
    "inche": "in",
    "foot": "ft",
    "feet": "ft",
    "yard": "yd",
    "mile": "mi",
    "gram": "g",
    "kilogram": "kg",
    "liter": "l",
    "litre": "l",
    "second": "s",
    "sec": "s",
    "minute": "min",
    "hour": "h",
    "hr": "h",
    "usd": "dollar",
    "buck": "dollar",
    "deg": "degree",
}


def trailing_unit(text: str) -> tuple[str, str | None]:
    """The value and its unit in one spelling, or the text itself and None."""
    if text.endswith(r"^\circ"):
        return text[:-6].strip(), "degree"
    if text.startswith(f"{OPEN}dollar{CLOSE}"):
        amount, unit = trailing_unit(text[8:].strip())
        return (amount, f"{unit} dollar" if unit in SCALES else "dollar")
    if (match := re.fullmatch(rf"(-?)\s*{OPEN}dollar{CLOSE}\s*(.+)", text)) is not None:
        return match[1] + match[2], "dollar"
    if (match := _UNIT_TEXT.fullmatch(text)) is not None and match[1]:
        return match[1].strip(), _unit(match[2], match[3])
    match = _UNIT_WORDS.fullmatch(text)
    if match is not None and literal(match[1].strip()) and not _NO_UNITS & set(match[2].lower().split()):
        return match[1].strip(), _unit(match[2], match[3])
    return text, None


def _unit(text: str, power: str | None) -> str | None:
    names = re.findall(r"[A-Za-z°]+|[/^\d]+", text.lower())
    if names and names[0] in ("square", "sq", "cubic", "cu") and power is None:
        power, names = ("2" if names[0].startswith("sq") else "3"), names[1:]
    singular = [n[:-1] if len(n) > 2 and n.endswith("s") and not n.endswith("ss") else n for n in names]
    unit = " ".join(_SAME_UNITS.get(n, n) for n in singular)
    return (f"{unit}^{power}" if power else unit) or None
