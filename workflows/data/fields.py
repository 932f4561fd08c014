"""What a converter of rows works with: the draft of a task, why a row is unusable, fields by dotted path."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

# Why rows are unusable, in few words: what a report counts by. The detail is in `Unusable.reason`.
NOT_DECODED: Final = "can't be decoded"
NO_OBJECT: Final = "not an object"
NO_PROBLEM: Final = "no question or problem"
NO_GOLD: Final = "no gold answer"
BAD_GOLD: Final = "a gold answer that nothing can match"
NO_TESTS: Final = "no tests"
BAD_TESTS: Final = "tests that can't be read"
BAD_FIELD: Final = "a field of another type"
NO_COLUMN: Final = "a column that is missing"
UNDECIDABLE: Final = "a proof or another answer that no grader can decide"
UNANSWERABLE: Final = "a question that its data set calls unanswerable"
REPEATED: Final = "seen before"
TOO_LARGE: Final = "too large"

MAX_PATH_DEPTH: Final = 3
MAX_LITERAL_CHARS: Final = 100_000  # of a Python literal, whose parser is slow and deep


class Unusable(Exception):
    """Why a row can't become a task: one of the causes above, and the detail."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has an id, a split and a source of its own. `notes`: what was decided about it."""

    inputs: Mapping[str, Any]
    gold: Mapping[str, Any]
    task_id: str | None = None
    split: str | None = None
    source: str | None = None
    notes: tuple[str, ...] = ()


Converter = Callable[[Mapping[str, Any]], Draft]


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, None where there is none. A key that holds a dot itself wins.

    An object on the way may be JSON text, as in exports of nested columns to CSV.
    """
    if isinstance(row, str):
        row = decoded(row)
    if not isinstance(row, dict | Mapping):  # dict first: the test for an abstract class is slow
        return None
    if path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    return at(row[head], rest) if dot and head in row else None


def has_path(row: Any, path: str) -> bool:
    """Whether there is something at a dotted path, null included."""
    row = decoded(row)
    if not isinstance(row, dict | Mapping):
        return False
    if path in row:
        return True
    head, dot, rest = path.partition(".")
    return bool(dot) and head in row and has_path(row[head], rest)


def paths_of(row: Any, above: str = "") -> Iterator[str]:
    """The dotted paths of a row and of the objects in it, for a message about one that is not there."""
    row = decoded(row)
    if isinstance(row, dict | Mapping) and above.count(".") < MAX_PATH_DEPTH:
        for name, value in row.items():
            yield f"{above}{name}"
            yield from paths_of(value, f"{above}{name}.")


def given(row: Mapping[str, Any], paths: Iterable[str]) -> Iterator[Any]:
    """The values at these paths that are there and are not empty, in order. False and 0 are values."""
    for path in _there(tuple(row), tuple(paths)):
        value = at(row, path)
        if value is not None and value != "" and value != [] and value != {}:
            yield value


@lru_cache(maxsize=4096)  # rows of a file have the same names, and are asked for dozens of paths each
def _there(names: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths that rows with these names may have."""
    known = frozenset(names)
    return tuple(path for path in paths if path in known or path.partition(".")[0] in known)


def first_text(row: Mapping[str, Any], paths: Iterable[str]) -> str | None:
    """The first of these that is a text with something in it."""
    return next((v for v in given(row, paths) if isinstance(v, str) and v.strip()), None)


def problem_text(value: Any, what: str = "question") -> str:
    """A text that can be asked, or `Unusable`."""
    if value is None:
        raise Unusable(NO_PROBLEM, f"no {what}")
    if not isinstance(value, str):
        raise Unusable(NO_PROBLEM, f"the {what} is {value!r:.60}, expected a text")
    if not value.strip():
        raise Unusable(NO_PROBLEM, f"the {what} is blank")
    return value


def label(row: Mapping[str, Any], path: str) -> str | None:
    """An id, a split or a source: a text or a whole number."""
    value = at(row, path)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps comes as floats
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unusable(BAD_FIELD, f"{path} is {value!r:.60}, expected a text or a whole number")
    if not str(value).strip():
        raise Unusable(BAD_FIELD, f"{path} is blank")
    return str(value)


def first_label(row: Mapping[str, Any], paths: Iterable[str]) -> str | None:
    return next((found for path in paths if (found := label(row, path)) is not None), None)


def number_text(value: float) -> str:
    """A number as people write it: 12.0 is 12."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def decoded(value: Any) -> Any:
    """What a text of a JSON or Python object or list says; any other value as it is."""
    if not isinstance(value, str) or (text := value.strip())[:1] + text[-1:] not in ("{}", "[]"):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if "'" not in text or len(text) > MAX_LITERAL_CHARS:
        return value
    try:  # str() of a Python list, as CSV files of pandas hold it
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return value


def truth_texts(value: bool) -> list[str]:
    """How people write a truth value as an answer, as the golds of BoolQ and StrategyQA are."""
    return ["yes", "true"] if value else ["no", "false"]


def text_list(value: Any) -> Any:
    """The texts of a list that is written as one text, `'["a", "b"]'`; any other value as it is.

    Only lists of texts: `[1, 2]` may be an interval or a vector, and is an answer as it stands.
    """
    items = decoded(value) if isinstance(value, str) else None
    if isinstance(items, list) and items and all(isinstance(item, str) for item in items):
        return items
    return value


def names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "nothing"
