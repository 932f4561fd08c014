"""Whether an output, or a returned value, is what a test wants.

**An output** is compared word by word; a word is what stands between white space. Where the tests say
`whitespace = "lines"`, line by line as well: blanks at the ends of lines and empty lines at the end
don't count. Two words are equal if they are the same text, or

- the expected one is a decimal fraction (it has a point or an exponent), the other a number, and they
  differ by at most 1e-6 · max(1, |expected|). Integers are compared as text: no tolerance, no limit of
  digits, and `07` is not `7`;
- the expected one is "yes" or "no" in any case, and the other is the same word in another case.

**A returned value** is compared as JSON: tuples are lists, keys of dicts are texts. Numbers follow the
same rule: where a float is expected 1e-6 is allowed, where an int is expected the value must be equal.
True is 1 and 1 is true, as Python's own `==` has it and with it the harnesses of the benchmarks; not with
`strict_bool`.
What JSON has no form for (sets, bytes, complex) is equal to nothing.

The rungs are those of the reference system, without tolerance for integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from workflows.tools.code.codetests import CallCase, CodeTests, StdioCase
from workflows.tools.code.report import clip

TOLERANCE: Final = 1e-6
_SHOWN: Final = 300
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_YES_NO: Final = ("yes", "no")


def check_output(tests: CodeTests, case: StdioCase, output: str) -> str | None:
    """What is wrong with an output; None where it is right. For all checkers but "custom"."""
    if tests.checker == "cf_rearrange_string":
        return _check_rearranged(case.input, output)
    if tests.checker == "unordered_tokens":
        same = _same_words(sorted(case.output.split()), sorted(output.split()))
    elif tests.whitespace == "lines":
        rows, expected_rows = _lines(output), _lines(case.output)
        same = len(rows) == len(expected_rows) and all(
            _same_words(a.split(), b.split()) for a, b in zip(expected_rows, rows, strict=True)
        )
    else:
        same = _same_words(case.output.split(), output.split())
    return None if same else difference(case.output, output)


def difference(expected: str, got: str) -> str:
    """The first place where two outputs part, in words."""
    pairs = enumerate(zip_longest(_lines(expected), _lines(got)), 1)
    for number, (want, have) in pairs:
        if want != have and not (
            want is not None and have is not None and _same_words(want.split(), have.split())
        ):
            return f"line {number}: expected {_line(want)}, got {_line(have)}"
    return f"expected {shown(expected)}, got {shown(got)}"


def check_value(case: CallCase, got: Any, strict_bool: bool = False) -> str | None:
    """What is wrong with a value, decoded with `JSON_DECODERS`; None where it is right."""
    if same_value(case.expected, got, strict_bool):
        return None
    only = case.wrapped and isinstance(case.expected, list) and len(case.expected) == 1
    if only and same_value(case.expected[0], got, strict_bool):
        return None
    return f"expected {shown(case.expected)}, got {shown(got)}"


def same_value(expected: Any, got: Any, strict_bool: bool = False) -> bool:
    """Whether two JSON values are equal by the rule of this module."""
    if isinstance(expected, list):
        return (
            isinstance(got, list)
            and len(expected) == len(got)
            and all(same_value(a, b, strict_bool) for a, b in zip(expected, got, strict=True))
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(got, dict)
            and expected.keys() == got.keys()
            and all(same_value(value, got[key], strict_bool) for key, value in expected.items())
        )
    if strict_bool and isinstance(expected, bool) != isinstance(got, bool):
        return False
    if isinstance(expected, float) and isinstance(got, int | float):
        return _close(expected, got)
    if isinstance(expected, bool | int | float) and isinstance(got, bool | int | float):
        return expected == got  # True == 1, as Python's own == has it
    return type(expected) is type(got) and bool(expected == got)


class _NotJson:
    """Stands for a value without a JSON form; equal to nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def _with_text_keys(pairs: Any) -> dict[str, Any]:
    # texts only: their hashes are salted, so a program can't choose keys that make a dict slow
    return {_as_key(key): value for key, value in pairs}


def _as_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return repr(key)


def _opaque(kind: str) -> Callable[[Any], _NotJson]:
    return lambda _: _NotJson(kind)


JSON_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "i": lambda text: int(text, 16),
    "t": list,
    "d": _with_text_keys,
    "s": _opaque("set"),
    "z": _opaque("frozenset"),
    "b": _opaque("bytes"),
    "y": _opaque("bytearray"),
    "c": _opaque("complex number"),
    "r": _opaque("range"),
    "n": _opaque("iterator"),
}


def _same_words(expected: Sequence[str], got: Sequence[str]) -> bool:
    return len(expected) == len(got) and all(_same_word(a, b) for a, b in zip(expected, got, strict=True))


def _same_word(expected: str, got: str) -> bool:
    if expected == got:
        return True
    if expected.lower() in _YES_NO:
        return expected.lower() == got.lower()
    if (
        not any(mark in expected for mark in ".eE")
        or not _NUMBER.fullmatch(expected)
        or not _NUMBER.fullmatch(got)
    ):
        return False
    return _close(float(expected), float(got))


def _close(expected: float, got: float) -> bool:
    try:
        if math.isnan(expected) or math.isinf(expected):
            return expected == got or (math.isnan(expected) and math.isnan(got))
        return abs(expected - got) <= TOLERANCE * max(1.0, abs(expected))
    except OverflowError:  # an integer beyond all floats
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _line(text: str | None) -> str:
    return "no line" if text is None else shown(text)


def shown(value: Any) -> str:
    """A value in a few words."""
    try:
        return clip(repr(value), _SHOWN)
    except (ValueError, RecursionError):  # integers beyond the limit of digits
        return f"a very large {type(value).__name__}"


def _check_rearranged(given: str, output: str) -> str | None:
    """For each string of the input, NO if its characters are all the same, else YES and, on the next
    line, another order of its characters that differs from it (Codeforces 1822 and its like)."""
    count, *strings = given.split() or ["0"]
    if not count.isdecimal() or int(count) != len(strings):
        return "the input is not a count and that many strings"
    lines = iter([line.strip() for line in output.splitlines() if line.strip()])
    for string in strings:
        wanted, said = "no" if len(set(string)) == 1 else "yes", next(lines, "")
        if said.lower() != wanted:
            return f"for {string!r:.80}: expected {wanted.upper()}, got {said!r:.80}"
        if wanted == "yes":
            new = next(lines, "")
            if new == string or sorted(new) != sorted(string):
                return f"for {string!r:.80}: {new!r:.80} is not another order of its characters"
    return None if next(lines, None) is None else "there is more output than strings"
