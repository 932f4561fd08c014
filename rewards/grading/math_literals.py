r"""Literal numbers, exact."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

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
