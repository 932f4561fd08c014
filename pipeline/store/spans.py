"""Spans of iterations as `--iterations` takes them: `A:B` is from A to before B, as in Python."""

from __future__ import annotations

import re

from workflows.errors import UsageError


def within(index: int, span: str | None) -> bool:
    """Whether an iteration lies in the span; None holds all.

    Raises:
        UsageError: not such a text.
    """
    first, end = span_of(span)
    return index >= first and (end is None or index < end)


def span_of(text: str | None) -> tuple[int, int | None]:
    """First index, and the one after the last, or None for no end."""
    if text is None:
        return 0, None
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip())
    if not match or not (match[1] or match[2]):
        raise UsageError(
            f"--iterations {text!r}: expected A:B, for example 2:5 for 2, 3 and 4 (B is left out, as in "
            "Python), 2: for 2 and all after it, or 2 alone"
        )
    first = int(match[1] or 0)
    if not match[2]:
        return first, first + 1
    return first, int(match[3]) if match[3] else None
