r"""Units after or before a value, and the words behind a number that are none.

A unit may be left out, so whatever is read as one is a way to be right without it. Hence a word is a unit
only if it can't be anything else: letters of which mathematics makes a product (`2ab`, `5mn`), and words that
change the value or doubt it ("squared", "half", "below zero", "or less"), never are.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Final

from rewards.grading.math_characters import CLOSE, MONEY, OPEN

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
_SHARES: Final = {
    **{"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7},
    **{"eighth": 8, "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000, "millionth": 10**6},
}
_NUMBER_WORDS: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_OPERATIONS: Final = """
squared cubed factorial choose over times time's plus minus divided multiplied add added subtract subtracted
root roots sqrt power powers exponent mod modulo base log ln sin cos tan inverse reciprocal binary octal hex
hexadecimal ternary quaternary repeating recurring prime point
"""
_ORDER_AND_DOUBT: Final = """
negative positive below above under less more fewer greater lesser smaller larger bigger higher lower than
least most max maximum min minimum up or and to if not no non never nor neither either else between without
except but unless is isn't are was almost nearly approximately approx about roughly around maybe perhaps
possibly probably wrong incorrect false impossible undefined none null infinity infinite instead rather
otherwise short off
"""
_AMOUNTS: Final = "double triple quadruple twice thrice gross score myriad lakh crore permille percentage"
_CHANGES: Final = frozenset(
    [
        *_NUMBER_WORDS.split(),
        *_OPERATIONS.split(),
        *_ORDER_AND_DOUBT.split(),
        *_AMOUNTS.split(),
        *_SHARES,
        *(f"{name}s" for name in _SHARES),
    ]
)
_UNITS_ANYWAY: Final = frozenset({"min", "second", "seconds"})
_ONLY_IN_TEXT: Final = frozenset({"of", "from", "when", "where"})

# Read as units also where they touch the number. Those in the second list are products there: 2mg is 2·m·g.
_TOUCHING_UNITS: Final = "cm mm km kg ft in yd lb lbs oz hrs mph kph khz kwh usd eur gbp"
_OTHER_UNITS: Final = """
mg ml dl cl dm nm ms ns mi ly gm gr hp kn kt pt qt ha ac mo wk hr yr yrs pa kpa ev mol rad rpm cc sec min
deg gal hz kw kj gb mb kb tb sq cu am pm fps mpg mpa btu bps psi inr jpy cny rs
"""
_TOUCHING: Final = frozenset(_TOUCHING_UNITS.split())
_APART: Final = frozenset(_OTHER_UNITS.split())
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
    "eur": "euro",
    "gbp": "pound",
    "inr": "rupee",
    "rs": "rupee",
    "jpy": "yen",
    "deg": "degree",
}
_SPELLED: Final = frozenset(
    {name for name in _SAME_UNITS if len(name) > 3} | {"degree", "dollar", "euro", "cent", "day"}
)
_IN_TEXT: Final = re.compile(
    rf"(.*?[\w}})\]%!])?\s*{OPEN}([^{CLOSE}{OPEN}]*){CLOSE}\s*(?:\^\s*\{{?\s*([23])\s*\}}?)?\s*"
)
_BARE: Final = re.compile(
    r"(.*?\d(?:\s*[)}])*)(\s*)((?:[A-Za-z]{2,}\.?)(?:\s+(?:per\s+)?[A-Za-z]{2,}\.?){0,2})(?:\^\{?([23])\}?)?"
)
_SHARE: Final = re.compile(rf"(-?\d+)\s*(?:-|\s|{OPEN})\s*([A-Za-z]+?)(s?)\s*{CLOSE}?")


def trailing_unit(text: str) -> tuple[str, str | None]:
    """The value and its unit in one spelling, or the text itself and None."""
    if text.endswith(r"^\circ"):
        return text[:-6].strip(), "degree"
    if (match := re.fullmatch(rf"([-+]?)\s*{OPEN}{MONEY}([^{CLOSE}]*){CLOSE}\s*(.+)", text)) is not None:
        amount, unit = trailing_unit(match[3].strip())
        scale = unit if unit is not None and all(word in SCALES for word in unit.split()) else None
        return match[1] + amount, f"{scale} {match[2]}" if scale else match[2]
    if (match := _IN_TEXT.fullmatch(text)) is not None and match[1]:
        words = match[2].removeprefix(MONEY)
        return (match[1].strip(), _unit(words, match[3])) if _may_be_unit(words) else (text, None)
    match = _BARE.fullmatch(text)
    if match is not None and _is_value(match[1].strip()) and _are_units(match[3], touching=not match[2]):
        return match[1].strip(), _unit(match[3], match[4])
    return text, None


def share(text: str) -> Fraction | None:
    """`3 quarters`, `1 half` and the like as a number; None for other texts."""
    match = _SHARE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _SHARES or bool(match[3]) == (abs(int(match[1])) == 1):
        return None
    return Fraction(int(match[1]), _SHARES[match[2].lower()])


def is_product(letters: str, *, touching: bool) -> bool:
    """Whether a run of letters is a product of variables rather than a word: `abc` and `xyz`, not `cat`.

    Variables stand in the order of the alphabet, or there are few letters and no vowel, or they touch a
    number: `2acb`.
    """
    if re.fullmatch("[abcd]{3,4}|[klmn]{3,4}|[pqrs]{3,4}|[wxyz]{3,4}", letters):
        return True
    if len(letters) > 4:
        return False
    ascending = all(a < b for a, b in itertools.pairwise(letters))
    spoken = re.fullmatch("[^aeiou][aeiou][^aeiou]", letters) is not None  # box, cow, dot
    return touching or (ascending and not spoken)


def _is_value(text: str) -> bool:
    return re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text)) is None


def _may_be_unit(words: str) -> bool:
    names = re.findall(r"[A-Za-z']+", words.lower())
    if re.search(r"\d", re.sub(r"(?<=[A-Za-z])\^?\{?-?\d\}?(?!\d)", "", words)):
        return False  # "of 10", "base 2"
    return not any(name in _CHANGES and name not in _UNITS_ANYWAY for name in names)


def _are_units(words: str, *, touching: bool) -> bool:
    names = [name.rstrip(".").lower() for name in words.split()]
    if not _may_be_unit(words) or _ONLY_IN_TEXT & set(names):
        return False
    first = names[0]
    if first in _TOUCHING or first in SCALES or (first in _APART and not touching):
        return True
    vowels = re.search("[aeiou]", first) is not None
    if touching:  # "5hours"; other letters that touch a number are variables
        return first in _SPELLED or first.removesuffix("s") in _SPELLED
    return len(first) > 2 and vowels and not is_product(first, touching=False)


def _unit(text: str, power: str | None) -> str | None:
    names = re.findall(r"[A-Za-z°]+|[/^\d]+", text.lower())
    if names and names[0] in ("square", "sq", "cubic", "cu") and power is None:
        power, names = ("2" if names[0].startswith("sq") else "3"), names[1:]
    singular = [n[:-1] if len(n) > 2 and n.endswith("s") and not n.endswith("ss") else n for n in names]
    unit = " ".join(_SAME_UNITS.get(n, n) for n in singular)
    return (f"{unit}^{power}" if power else unit) or None
