"""What is wrong with a document: which rule it breaks, where, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SHOWN: Final = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule. `where` is the place within the document: `events[3].t`."""

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text} (rule {self.rule})" if self.where else f"{self.text} ({self.rule})"


def is_number(value: Any) -> bool:
    """Whether a value is a number of JSON: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def shown(value: Any) -> str:
    """A value for a message, cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def refuse_constant(word: str) -> float:
    """For `json.loads(parse_constant=…)`: NaN and Infinity are read, to be refused by name."""
    return float(word.replace("Infinity", "inf"))


def kind_name(value: Any) -> str:
    """The kind of a JSON value, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if is_number(value):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "an array"
