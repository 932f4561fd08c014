"""Values that no key of settings may have, whatever its type: what a run's files could not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any

from pipeline.settings.keys import dotted, types_at
from pipeline.settings.schema import Settings
from workflows.trajectory import clean_text

_NOT_UTF8 = "has characters that are not UTF-8 (lone surrogates); give it in UTF-8"
Problem = tuple[tuple[str, ...], str]  # the path of a value, and what is wrong with it


def refusals(value: Any, path: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Problems of nested settings: text that is not UTF-8, dates, numbers that are not finite, other objects,
    and true or false where a number is expected. Settings are kept as JSON and TOML, which must read back."""
    key = dotted(path) or "the settings"
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name != clean_text(name):
                yield path, f"a key of {key} = {name!a} {_NOT_UTF8}"
            else:
                yield from refusals(each, (*path, name))
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from refusals(each, (*path, str(place)))
    elif problem := _problem(value, path):
        yield path, f"{key} = {problem}"


def _problem(value: Any, path: Sequence[str]) -> str | None:
    if isinstance(value, bool):
        arms = types_at(Settings, path)
        if arms and not {bool, Any} & set(arms) and {int, float} & set(arms):
            return f"{str(value).lower()}, expected a number"
    elif isinstance(value, str):
        if value != clean_text(value):
            return f"{value!a} {_NOT_UTF8}"
    elif isinstance(value, date | time):
        return f"{value} is a date or time, which a run's files can't hold; write it in quotes, as text"
    elif isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is not a finite number; give a finite one, or leave the key out"
    elif value is not None and not isinstance(value, int):
        expected = "text, a number, true or false, a list or a table"
        return f"a value of type {type(value).__name__}, expected {expected}"
    return None
