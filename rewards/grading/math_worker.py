"""Compares two expressions with math-verify, as a program of its own: JSON lines in, JSON lines out.

It runs in a process that can be killed, because nothing else bounds computer algebra: the library's own
limits are alarms, which work in a main thread only and not while C code runs. Each request has a limit of
CPU time, which the kernel enforces, so a verdict does not depend on how busy the machine is.

Started by path with `-P`: the folder of this file holds a `math.py`, which must not hide Python's.

Request: `{"a": latex, "b": latex, "digits": int | null, "cpu_seconds": number}`; `digits` says that b is a
decimal of so many significant digits. Reply: `{"equal": bool, "reason": str}` or `{"error": str}`.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import resource
import signal
import sys
from decimal import Decimal
from typing import Any, Final

_MEMORY_BYTES: Final = 2 << 30
_PRECISION: Final = 50  # decimal digits of numbers that are no fractions
_SAME: Final = "1e-30"  # relative
_APPROXIMATION: Final = 6  # significant digits from which on a decimal may stand for what rounds to it


def main() -> None:
    replies = sys.stdout
    sys.stdout = sys.stderr  # nothing that a library prints is a reply
    try:
        _tell_letters_apart()
    except ImportError as error:
        _say(replies, {"error": f"math-verify can't be imported: {error}"})
        return
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends this process, in C code too
    sys.set_int_max_str_digits(100_000)
    _say(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        try:
            reply = compare(request["a"], request["b"], request["digits"])
        except RecursionError:
            reply = {"error": "too deeply nested to evaluate"}
        except (MemoryError, OverflowError):
            reply = {"error": "too large to evaluate"}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        _say(replies, reply)


def _tell_letters_apart() -> None:
    """Make the library read `M` and `m` as two variables; by default it lowers all letters."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import parser

    config = ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = functools.partial(parser.latex2sympy, conversion_config=config)


def compare(a: str, b: str, digits: int | None) -> dict[str, Any]:
    """Whether two expressions are equal, in either order the same."""
    import sympy

    one, other = _parse(a), _parse(b)
    for text, parsed in ((a, one), (b, other)):
        if parsed is None:
            return _verdict(False, f"{text!r:.80} can't be read as mathematics")
    one, other = _exact(one), _exact(other)
    for text, parsed in ((a, one), (b, other)):
        if isinstance(parsed, sympy.Basic) and parsed.has(sympy.zoo, sympy.nan):
            return _verdict(False, f"{text!r:.80} has no value")
    numbers = [_number(one), _number(other)]
    if None not in numbers:
        return _same_number(numbers[0], numbers[1], digits)
    # relations are compared with relations only: of `x + y = 5` the 5 alone is no answer
    if _is_relation(one) != _is_relation(other):
        return _verdict(False, "an equation and an expression")
    expressions = isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)
    if getattr(one, "free_symbols", None) != getattr(other, "free_symbols", None):
        difference = sympy.simplify(one - other) if expressions else None
        return _verdict(difference == 0, "expressions in different variables")
    if expressions and isinstance(one, sympy.Symbol) + isinstance(other, sympy.Symbol):
        # the library compares a lone symbol by its name
        return _verdict(sympy.simplify(one - other) == 0, "a symbol and an expression of it")
    from math_verify import verify

    options: dict[str, Any] = {"timeout_seconds": None, "raise_on_error": True}
    equal = verify(one, other, **options) or verify(other, one, **options)
    return _verdict(equal, "equal expressions" if equal else "different expressions")


def _verdict(equal: bool, reason: str) -> dict[str, Any]:
    return {"equal": bool(equal), "reason": reason}


def _parse(text: str) -> Any:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # units are read, and compared, before this; a box is gone
    cleaning = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
    )
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=cleaning)
    found = parse(
        f"${_with_own_letters(text)}$",
        [config],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=False,
    )
    return found[0] if found else None


def _with_own_letters(text: str) -> str:
    """Letters that the library takes for another one: a capital I, and letters with primes."""
    text = re.sub(r"\\[A-Za-z]+|I(?!_)", lambda m: "X_{capI}" if m[0] == "I" else m[0], text)
    return re.sub(
        r"(?<![\\A-Za-z])([A-Za-z])('+)(?!['(_])", lambda m: f"{m[1]}_{{{'prime' * len(m[2])}}}", text
    )


def _exact(expression: Any) -> Any:
    """Decimals as the fractions that they are, so that equal means equal."""
    import sympy

    if not isinstance(expression, sympy.Basic):
        return expression
    floats = {f: sympy.Rational(str(f)) for f in expression.atoms(sympy.Float)}
    return expression.xreplace(floats) if floats else expression


def _is_relation(expression: Any) -> bool:
    from math_verify.grader import is_relation

    return is_relation(expression)


def _number(expression: Any) -> Any:
    """The expression if it is a finite number without variables, else None. A lone i is imaginary."""
    import sympy

    if not isinstance(expression, sympy.Expr):
        return None
    if {symbol.name for symbol in expression.free_symbols} == {"i"}:
        expression = expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.I))
    if expression.free_symbols or expression.has(
        sympy.zoo, sympy.nan, sympy.oo, sympy.core.function.AppliedUndef
    ):
        return None
    expression = expression.doit()
    if expression.has(sympy.zoo, sympy.nan, sympy.oo):
        return None
    return expression if expression.is_number else None


def _same_number(a: Any, b: Any, digits: int | None) -> dict[str, Any]:
    import sympy

    if a == b:
        return _verdict(True, "equal numbers")
    if a.is_Rational and b.is_Rational:
        return _verdict(False, "different numbers")
    one, other = sympy.N(a, _PRECISION), sympy.N(b, _PRECISION)
    largest = max(abs(one), abs(other))
    if abs(one - other) <= sympy.Float(_SAME) * largest:
        return _verdict(True, "equal numbers")
    if digits is not None and digits >= _APPROXIMATION and one.is_real and other.is_real:
        shown = [f"{Decimal(str(number)):.{digits - 1}e}" for number in (one, other)]
        if shown[0] == shown[1]:
            return _verdict(True, f"equal when rounded to {digits} digits")
    return _verdict(False, "different numbers")


def _say(replies: Any, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
