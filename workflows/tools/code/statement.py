"""What a problem's statement says about how it is tested."""

from __future__ import annotations

import re
from typing import Final

from workflows.tools.code.codetests import CheckerType, StdioCase

_TIME_LIMIT: Final = re.compile(
    r"time[ -]?limit(?:[ _-]*(?:per|for each)[ -]*test(?:[ -]*case)?)?[^\d\n]{0,24}?"
    r"(\d+(?:\.\d+)?)\s*(ms|msec|millisec(?:ond)?s?|s|sec|seconds?)\b",
    re.IGNORECASE,
)
_BATCH: Final = (
    "number of test cases",
    "number of testcases",
    "t test cases",
    "t testcases",
    "t independent test cases",
    "multiple test cases",
)
_REARRANGE: Final = ("rearrange the characters", "not equal to", "impossible")


def time_limit(statement: str) -> float | None:
    """Seconds of the first "time limit per test: 2 seconds", "Time limit 500 ms" and the like; else None."""
    found = _TIME_LIMIT.search(statement.replace("$", "").replace("*", ""))
    if found is None:
        return None
    seconds = float(found.group(1)) * (0.001 if found.group(2).lower().startswith("m") else 1.0)
    return seconds or None


def checker_of(statement: str) -> CheckerType:
    """The judge that a statement asks for by its wording; "standard" for nearly all."""
    text = statement.lower()
    return "cf_rearrange_string" if all(phrase in text for phrase in _REARRANGE) else "standard"


def split_batch(statement: str, case: StdioCase, checker: CheckerType) -> list[StdioCase]:
    """One case for each line, where the statement says that an input is a batch and this one plainly is.

    That is: a count t above 1, then exactly t lines, and t lines of output. (The judge of rearranged strings
    looks at the input only.) All other cases stay whole.
    """
    whole = [case]
    if checker == "custom" or not any(phrase in statement.lower() for phrase in _BATCH):
        return whole
    lines = [line for line in case.input.splitlines() if line.strip()]
    outputs = [line for line in case.output.splitlines() if line.strip()]
    if not lines or not re.fullmatch(r"\s*\d{1,6}\s*", lines[0]) or not 1 < int(lines[0]) == len(lines) - 1:
        return whole
    if checker == "cf_rearrange_string":
        outputs = [""] * (len(lines) - 1)
    if len(outputs) != len(lines) - 1:
        return whole
    pairs = zip(lines[1:], outputs, strict=True)
    return [StdioCase(f"1\n{line}\n", f"{output}\n" if output else "") for line, output in pairs]
