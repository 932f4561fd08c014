"""Output parsers: from a model's text to a typed value and whether its format was kept.

An invalid reply has the value None, whatever was asked for: raw text never poses as a list or an
answer. The text itself stays on the turn, for a workflow that wants a lenient fallback and says so.
A parser is any picklable object with `parse(text) -> Parsed`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from workflows.errors import WorkflowError
from workflows.trajectory import clean_text


@dataclass(frozen=True, slots=True)
class Parsed:
    """`value` is None where `valid` is false; `problem` then says what was wrong."""

    value: Any
    valid: bool
    problem: str | None = None


def _invalid(problem: str) -> Parsed:
    return Parsed(None, False, problem)


class Parser(Protocol):
    """What a role needs of its parser."""

    def parse(self, text: str) -> Parsed: ...


@dataclass(frozen=True, slots=True)
class Raw:
    """The whole text, stripped. Valid unless it is empty."""

    def parse(self, text: str) -> Parsed:
        value = text.strip()
        return Parsed(value, True) if value else _invalid("empty reply")


@dataclass(frozen=True, slots=True)
class Tag:
    """What stands between the first `<name>` and the first `</name>` after it.

    Case counts; text outside the tags is tolerated; a missing tag or empty content is invalid.
    """

    name: str

    def __post_init__(self) -> None:
        if not self.name.replace("_", "").replace("-", "").isalnum():
            raise WorkflowError(f"a tag is letters, digits, '_' and '-'; got {self.name!r}")

    def parse(self, text: str) -> Parsed:
        _, opened, rest = text.partition(f"<{self.name}>")
        if not opened:
            return _invalid(f"no <{self.name}>")
        content, closed, _ = rest.partition(f"</{self.name}>")
        if not closed:
            return _invalid(f"<{self.name}> is not closed")
        value = content.strip()
        return Parsed(value, True) if value else _invalid(f"<{self.name}> is empty")


@dataclass(frozen=True, slots=True)
class JsonKey:
    """The value under `key` of the first JSON object in the text.

    Text around the object is tolerated. `kind="list"` wants a list of strings: blank ones are dropped
    and at most `max_items` kept. `kind="text"` wants one string. Another type, a missing key and
    nothing left are invalid.
    """

    key: str
    max_items: int | None = None
    kind: Literal["list", "text"] = "list"

    def __post_init__(self) -> None:
        if self.kind not in ("list", "text"):
            raise WorkflowError(f"JsonKey kind is 'list' or 'text', not {self.kind!r}")
        if self.max_items is not None and self.max_items < 1:
            raise WorkflowError(f"JsonKey max_items must be at least 1, got {self.max_items}")

    def parse(self, text: str) -> Parsed:
        found = first_json_object(text)
        if found is None:
            return _invalid("no JSON object")
        if self.key not in found:
            return _invalid(f"no key {self.key!r}")
        value = found[self.key]
        items = [value] if self.kind == "text" else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            want = "a string" if self.kind == "text" else "a list of strings"
            return _invalid(f"{self.key!r} is not {want}")
        # escapes such as \ud800 become lone surrogates, which no tokenizer or file takes
        cleaned = [clean_text(item).strip() for item in items]
        cleaned = [item for item in cleaned if item][: self.max_items]
        if not cleaned:
            return _invalid(f"{self.key!r} is empty")
        return Parsed(cleaned[0] if self.kind == "text" else cleaned, True)


def first_json_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in `text`, read from the leftmost brace from which one parses."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # not JSON from here, or nested beyond reason
            start = text.find("{", start + 1)
        else:
            return value
    return None
