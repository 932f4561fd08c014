r"""Whether a mathematical answer is right, and which part of a text is the answer.

`equal` takes answers apart by the rules of `math_answers` (lists, tuples, sets, intervals, names, units,
literal numbers), and gives only single expressions to math-verify (0.9, a computer algebra grader), each in a
process that can be killed (`math_pool`). So the verdict comes in bounded time from any thread.

Stated choices:

- An answer that is blank, or that only spells "nothing" (`none`, `null`, `nan`, `inf`), matches nothing, not
  even itself: failed extraction on either side is never a match. `\infty` and `\emptyset` are answers.
- `50\%` is 0.5 and is not 50.
- A list without brackets and a set have no order; a tuple has one, which a list beside it must keep.
- A unit may be left out, but two different units do not match, and none is converted: 5 cm is 5, not 50 mm.
  What is a unit is said in `math_units`: `2ab` is a product, "5 squared" and "5 or less" are not 5.
- Capital and small letters are different variables; `I` is a variable and `i` the imaginary unit.
- `3 \pmod 5` is a class of numbers and not 3; `13 \pmod 5` is the same class.
- Digits to a base (`1011_2`, `1011 base 2`) are compared as they are written, and are no decimal number.
- "about 5" and `\approx 5` are 5; "at least 5" is not.
- A name may be left out (`x = 5` is 5), two different names do not match.
- `(1, 2)` is a pair and an open interval; `[1, 2]` an interval.
- Numbers are exact. A decimal of at least six significant digits also matches what rounds to it and is no
  decimal itself: 0.333333 is 1/3, 0.33 is not. Decimals of 15 digits are compared to 15. `exact` turns both
  off, for tasks whose point is the closed form.
- Degrees are a unit: `90^\circ` is 90, and is not `\frac{\pi}{2}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from rewards.grading import math_pool
from rewards.grading.math_answers import Answer, read
from rewards.grading.math_extract import MAX_ANSWER_CHARACTERS, boxes
from rewards.grading.math_pool import GradingError
from rewards.grading.math_text import clean, key

_MAX_NESTING: Final = 50
_MAX_POWER_DIGITS: Final = 20_000  # digits of a number written as a power
_APPROXIMATION: Final = 6  # as in math_worker
_FLOAT_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """`reason` says in a few words what decided."""

    correct: bool
    reason: str


# --- equality -----------------------------------------------------------------------------------------

_NOTHING: Final = frozenset({"", "none", "null", "nan", "inf", "+inf", "-inf", "n/a"})


@lru_cache(maxsize=1 << 14)
def equal(prediction: str | None, gold: str | None, exact: bool = False) -> MathVerdict:
    """Whether two answers mean the same; symmetric. Both are answers, not texts that contain one.

    None, or an answer that says nothing or whose box is never closed, is not correct. With `exact`, no
    decimal stands for a number that it only rounds to. Takes at most some seconds of CPU time.

    Raises:
        GradingError: there is no verdict, since evaluating takes too long or too much memory. That is not
            the same as wrong.
        UsageError: math-verify is not installed.
    """
    cleaned = []
    for what, answer in (("prediction", prediction), ("gold", gold)):
        if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
            return MathVerdict(False, f"no answer in the {what}")
        text = clean(answer)
        if key(text).casefold() in _NOTHING or boxes(answer).cut:
            return MathVerdict(False, f"no answer in the {what}")
        cleaned.append(text)
    one, other = cleaned
    if key(one) == key(other):
        return MathVerdict(True, "same text")
    for text in cleaned:
        _refuse_giants(text)
    return _compared(one, other, exact)


def _compared(one: str, other: str, exact: bool) -> MathVerdict:
    a, b = read(one), read(other)
    if (a.kind == "list") != (b.kind == "list") and a.kind != b.kind:
        # 100,200 beside a list is a list as well
        again_a, again_b = read(one, thousands=False), read(other, thousands=False)
        if again_a.kind == again_b.kind == "list":
            a, b = again_a, again_b
    if exact:
        a, b = _exactly(a), _exactly(b)
    return _same(a, b)


def _exactly(answer: Answer) -> Answer:
    """The answer with nothing said of digits: its decimals are the fractions that they are."""
    return replace(answer, digits=None, items=tuple(map(_exactly, answer.items)))


def _same(a: Answer, b: Answer) -> MathVerdict:
    if a.name and b.name and a.name != b.name:
        if _has_variables(a.text) and _has_variables(b.text) and not (a.items or b.items):
            return MathVerdict(*math_pool.compare(f"{a.name}={a.text}", f"{b.name}={b.text}"))  # y = x, x = y
        return MathVerdict(False, f"names differ: {a.name} and {b.name}")
    if a.unit and b.unit and a.unit != b.unit:
        return MathVerdict(False, f"units differ: {a.unit} and {b.unit}")
    if a.kind == b.kind != "number" and key(a.text) == key(b.text) and a.open == b.open:
        return MathVerdict(True, "same text")
    if a.items and b.items:
        return _same_items(a, b)
    if a.items or b.items:
        whole, single = (a, b) if a.items else (b, a)
        if whole.kind in ("set", "list") and len(whole.items) == 1:
            return _same(whole.items[0], single)
        return MathVerdict(False, f"one is a {whole.kind}")
    if a.kind == "words" or b.kind == "words":
        return MathVerdict(False, "texts differ")
    if a.value is not None and b.value is not None:
        return _same_number(a, b)
    return _same_expression(a, b)


def _same_number(a: Answer, b: Answer) -> MathVerdict:
    assert a.value is not None
    assert b.value is not None
    if a.value == b.value:
        return MathVerdict(True, "equal numbers")
    for decimal, exact in ((a, b), (b, a)):
        assert decimal.value is not None
        assert exact.value is not None
        digits = min(decimal.digits or 0, _FLOAT_DIGITS)
        endless = 10**64 % exact.value.denominator != 0  # of no finite decimal
        # beside another decimal or integer only the noise of a float is let pass: 0.30000000000000004
        noise = digits == _FLOAT_DIGITS and _rounded(exact.value, 12) == exact.value
        if (noise or (endless and digits >= _APPROXIMATION)) and (
            _rounded(exact.value, digits) == _rounded(decimal.value, digits)
        ):
            return MathVerdict(True, f"equal when rounded to {digits} digits")
    return MathVerdict(False, "different numbers")


def _rounded(value: Fraction, digits: int) -> Fraction:
    """To so many significant digits, halves up in absolute value."""
    if value == 0:
        return value
    size, power = abs(value), 0
    while size >= 10:
        size, power = size / 10, power + 1
    while size < 1:
        size, power = size * 10, power - 1
    unit = Fraction(10) ** (power - digits + 1)
    return (1 if value > 0 else -1) * ((abs(value) / unit + Fraction(1, 2)) // 1) * unit


def _same_expression(a: Answer, b: Answer) -> MathVerdict:
    for equation, other in ((a, b), (b, a)):
        if "=" in equation.text and "=" not in other.text:
            if not other.name or not _has_variables(other.text):  # 3x = 6 is not yet x = 2
                return _last_of_sum(equation, other)
            other = replace(other, text=f"{other.name}={other.text}", digits=None, name=None)
            a, b = equation, other
    if a.digits is not None:
        a, b = b, a
    digits = None if b.digits is None else min(b.digits, _FLOAT_DIGITS)
    return MathVerdict(*math_pool.compare(a.text, b.text, digits))


def _last_of_sum(equation: Answer, other: Answer) -> MathVerdict:
    """`2 + 3 = 5` is 5, if it is true; an equation in variables is no value."""
    parts = [part.strip() for part in equation.text.split("=")]
    if all(parts) and not _has_variables(equation.text):
        verdicts = [_same(read(part), other) for part in reversed(parts)]
        return next((verdict for verdict in verdicts if not verdict.correct), verdicts[0])
    return MathVerdict(False, "one is an equation")


def _has_variables(text: str) -> bool:
    return re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text)) is not None


# --- lists, tuples, sets, intervals ---------------------------------------------------------------------


def _same_items(a: Answer, b: Answer) -> MathVerdict:
    kinds = {a.kind, b.kind}
    if kinds == {"interval"} or (kinds == {"interval", "tuple"}):
        interval = [x for x in (a, b) if x.kind == "interval"]
        if any(x.open != (a if len(interval) == 2 else interval[0]).open for x in interval) or (
            len(interval) == 1 and interval[0].open != (True, True)
        ):
            return MathVerdict(False, "ends of intervals differ: open and closed")
        return _in_order(a, b)
    if kinds in ({"tuple"}, {"list", "tuple"}):
        return _in_order(a, b)
    if "residue" in kinds:
        return _same_residue(a, b)
    if kinds == {"list"} and {_named(a), _named(b)} == {True, False}:
        return _in_order(a, b)  # x = 1, y = 2 and 1, 2
    if kinds in ({"list"}, {"union"}):
        return _one_to_one(a, b)
    if kinds <= {"set", "list"}:
        return _both_ways(a, b)
    return MathVerdict(False, f"one is a {a.kind}, the other a {b.kind}")


def _same_residue(a: Answer, b: Answer) -> MathVerdict:
    if a.kind != b.kind:
        return MathVerdict(False, "one is a class of remainders")
    (one, modulus), (other, other_modulus) = a.items, b.items
    if not (verdict := _same(modulus, other_modulus)).correct:
        return verdict
    if None not in (one.value, other.value, modulus.value) and modulus.value:
        same = (one.value - other.value) % modulus.value == 0  # type: ignore[operator]
        return MathVerdict(same, "equal remainders" if same else "different remainders")
    return _same(one, other)


def _named(answer: Answer) -> bool:
    return len({item.name for item in answer.items if item.name}) > 1


def _in_order(a: Answer, b: Answer) -> MathVerdict:
    if len(a.items) != len(b.items):
        return _lengths(a, b)
    for one, other in zip(a.items, b.items, strict=True):
        if not (verdict := _same(one, other)).correct:
            return verdict
    return MathVerdict(True, f"equal {a.kind}s")


def _one_to_one(a: Answer, b: Answer) -> MathVerdict:
    if len(a.items) != len(b.items):
        return _lengths(a, b)
    left = list(b.items)
    for item in a.items:
        match = next((i for i, other in enumerate(left) if _same(item, other).correct), None)
        if match is None:
            return MathVerdict(False, f"{item.text!r:.40} is in one of them only")
        del left[match]
    return MathVerdict(True, f"equal {a.kind}s")


def _both_ways(a: Answer, b: Answer) -> MathVerdict:
    for these, those in ((a, b), (b, a)):
        for item in these.items:
            if not any(_same(item, other).correct for other in those.items):
                return MathVerdict(False, f"{item.text!r:.40} is in one of them only")
    return MathVerdict(True, "equal sets")


def _lengths(a: Answer, b: Answer) -> MathVerdict:
    return MathVerdict(False, f"{len(a.items)} and {len(b.items)} items")


# --- what is not even tried ------------------------------------------------------------------------------

_POWER: Final = re.compile(r"(\d+(?:\.\d+)?)((?:\s*\^\s*\{*\s*\(?\s*\d+)+)")
_FACTORIAL: Final = re.compile(r"(\d+)\s*!")


def _refuse_giants(text: str) -> None:
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING:
        raise GradingError(f"brackets are nested {deepest} deep, more than {_MAX_NESTING}")
    for base, tower in _POWER.findall(text):
        exponent = 1.0
        for part in reversed(re.findall(r"\d+", tower)):
            exponent = float(part[:20]) ** exponent if exponent < 20 else float("inf")
        if exponent * max(1, len(base)) > _MAX_POWER_DIGITS and float(base[:20]) > 1:
            raise GradingError("a power is too large to evaluate")
    if any(len(number) > 4 for number in _FACTORIAL.findall(text)):
        raise GradingError("a factorial is too large to evaluate")
