"""Output parsers: from a model's text to a typed value and whether its format was kept.

An invalid reply has the value None, whatever was asked for: raw text never poses as a list or an
answer. What can still be made of it is its *lenient* reading, of the same type as a value; a workflow
that goes on with it says so (`Output.best`). A reply that allows no such reading has none.
A parser is any picklable object with `parse(text) -> Parsed`. One whose verdict depends on the prompt has
`parse_for(text, variables)` beside it, with the variables of the prompt that was answered (`ParserHooks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from workflows.errors import WorkflowError
from workflows.hooks import hooks_of
from workflows.trajectory import clean_text


@dataclass(frozen=True, slots=True)
class Parsed:
    """`value` is None where `valid` is false; `problem` then says what was wrong.

    `lenient` is then what the parser's fallback reads, of the type of a value, or None.
    """

    value: Any
    valid: bool
    problem: str | None = None
    lenient: Any = None

    @property
    def best(self) -> Any:
        """The value of a valid reply, else the lenient reading."""
        return self.value if self.valid else self.lenient


def invalid(problem: str, lenient: Any = None) -> Parsed:
    """A reply that breaks its format, and what its fallback reads."""
    return Parsed(None, False, problem, lenient)


class Parser(Protocol):
    """What a role needs of its parser; see `ParserHooks` for what a parser may do beside it."""

    def parse(self, text: str) -> Parsed: ...


class ParserHooks:
    """What a parser may do beside `parse`. A class of parsers may inherit from it, or have it or not."""

    __slots__ = ()

    def parse(self, text: str) -> Parsed:
        """The verdict on a reply; every parser has it."""
        raise NotImplementedError(f"{type(self).__name__} has no parse(text)")

    def parse_for(self, text: str, variables: Mapping[str, Any]) -> Parsed:
        """The verdict on the reply to a prompt with these variables; by default they do not count."""
        return self.parse(text)


def read_reply(parser: Parser, text: str, variables: Mapping[str, Any]) -> Parsed:
    """The verdict of `parser` on the reply to a prompt with these variables."""
    return hooks_of(parser, ParserHooks).parse_for(text, variables)


@dataclass(frozen=True, slots=True)
class Raw(ParserHooks):
    """The whole text, stripped. Valid unless it is empty, which leaves nothing for a lenient reading."""

    def parse(self, text: str) -> Parsed:
        value = text.strip()
        return Parsed(value, True) if value else invalid("empty reply")


@dataclass(frozen=True, slots=True)
class Tag(ParserHooks):
    """What stands between the first `<name>` and the first `</name>` after it.

    Case counts; text outside the tags is tolerated; a missing tag or empty content is invalid. The
    lenient reading is the whole text.
    """

    name: str

    def __post_init__(self) -> None:
        check_tag(self.name)

    def parse(self, text: str) -> Parsed:
        whole = text.strip() or None
        _, opened, rest = text.partition(f"<{self.name}>")
        if not opened:
            return invalid(f"no <{self.name}>", whole)
        content, closed, _ = rest.partition(f"</{self.name}>")
        if not closed:
            return invalid(f"<{self.name}> is not closed", whole)
        value = content.strip()
        return Parsed(value, True) if value else invalid(f"<{self.name}> is empty", whole)


@dataclass(frozen=True, slots=True)
class StrictTags(ParserHooks):
    """Each of `names` exactly once, not empty, and nothing outside the tags but white space.

    Case does not count, nor does the order of the tags. The value is the text inside, or with a tuple
    of names a mapping of name to text. `choices` bounds what the text of a tag may be; the value has
    the spelling of the choice.

    The lenient reading takes the `lenient` ("first" or "last") occurrence of each tag that is not
    empty, whatever stands around it. A tag without one reads as the whole text or as "", as `missing`
    says ("text" or "empty"); one outside its choices as "". A single tag that reads as "" has none.
    """

    names: str | tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lenient: Literal["first", "last"] = "first"
    missing: Literal["text", "empty"] = "text"

    def __post_init__(self) -> None:
        for name in self._names:
            check_tag(name)
        if not self._names or len({name.lower() for name in self._names}) < len(self._names):
            raise WorkflowError(f"StrictTags wants different names, at least one; got {self.names!r}")
        if unknown := sorted(set(self.choices) - set(self._names)):
            raise WorkflowError(
                f"StrictTags has choices for {unknown[0]!r}; its tags are {', '.join(self._names)}"
            )
        if self.lenient not in ("first", "last") or self.missing not in ("text", "empty"):
            raise WorkflowError(
                "StrictTags lenient is 'first' or 'last' and missing is 'text' or 'empty'; "
                f"got {self.lenient!r} and {self.missing!r}"
            )

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.names,) if isinstance(self.names, str) else self.names

    def parse(self, text: str) -> Parsed:
        spans_of = {name: tagged(name, text) for name in self._names}
        for name, spans in spans_of.items():
            if problem := self._fault(name, spans, text):
                return invalid(problem, self._lenient(spans_of, text))
        if outside([span for spans in spans_of.values() for span in spans], text):
            return invalid("text outside the tags", self._lenient(spans_of, text))
        return Parsed(
            self._value({n: self._choice(n, s[0].content) or "" for n, s in spans_of.items()}), True
        )

    def _fault(self, name: str, spans: Sequence[Tagged], text: str) -> str | None:
        marks = len(_mark(name).findall(text))
        if not spans:
            return f"<{name}> is not closed" if marks else f"no <{name}>"
        if marks > 2:
            return f"<{name}> more than once"
        if not (content := spans[0].content):
            return f"<{name}> is empty"
        if inner := [other for other in self._names if _mark(other).search(content)]:
            return f"<{inner[0]}> inside <{name}>"
        if self._choice(name, content) is None:
            return f"<{name}> is none of {', '.join(self.choices[name])}"
        return None

    def _choice(self, name: str, content: str) -> str | None:
        """The content, in the spelling of its choice where there are choices; None if it is none of them."""
        if name not in self.choices:
            return content
        return {choice.lower(): choice for choice in self.choices[name]}.get(content.lower())

    def _lenient(self, spans_of: Mapping[str, Sequence[Tagged]], text: str) -> Any:
        read = {}
        for name, spans in spans_of.items():
            full = [span.content for span in spans if span.content]
            whole = text.strip() if self.missing == "text" else ""
            content = full[0 if self.lenient == "first" else -1] if full else whole
            read[name] = self._choice(name, content) or ""
        return self._value(read) or None

    def _value(self, read: dict[str, str]) -> Any:
        return read[self.names] if isinstance(self.names, str) else read


@dataclass(frozen=True, slots=True)
class JsonKey(ParserHooks):
    """The value under `key` of the first JSON object in the text.

    Text around the object is tolerated. `kind="text"` wants one string. `kind="list"` wants a list of
    strings, `kind="numbers"` one of whole numbers: blank strings are dropped and at most `max_items`
    kept. Another type and a missing key are invalid, and so is an empty text or list, unless
    `may_be_empty`.

    The lenient reading of a text is the whole reply. A list has none but the empty list, where the
    reply has that: text is not a list, its length would count characters.
    """

    key: str
    max_items: int | None = None
    kind: Literal["list", "text", "numbers"] = "list"
    may_be_empty: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("list", "text", "numbers"):
            raise WorkflowError(f"JsonKey kind is 'list', 'text' or 'numbers', not {self.kind!r}")
        if self.max_items is not None and self.max_items < 1:
            raise WorkflowError(f"JsonKey max_items must be at least 1, got {self.max_items}")

    def parse(self, text: str) -> Parsed:
        whole = text.strip() or None if self.kind == "text" else None
        read = first_json_object(text)
        if read is None:
            return invalid("no JSON object", whole)
        if self.key not in read:
            return invalid(f"no key {self.key!r}", whole)
        value = read[self.key]
        if not _is_kind(value, self.kind):
            wants = {"text": "a string", "list": "a list of strings", "numbers": "a list of whole numbers"}
            return invalid(f"{self.key!r} is not {wants[self.kind]}", whole)
        cleaned = _cleaned(value) if self.kind == "text" else _cleaned_items(value)[: self.max_items]
        if not cleaned and not self.may_be_empty:
            return invalid(f"{self.key!r} is empty", whole if self.kind == "text" else [])
        return Parsed(cleaned, True)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    item = str if kind == "list" else int
    return isinstance(value, list) and all(isinstance(v, item) and not isinstance(v, bool) for v in value)


def _cleaned_items(items: list[Any]) -> list[Any]:
    cleaned = [_cleaned(item) if isinstance(item, str) else item for item in items]
    return [item for item in cleaned if item != ""]


def _cleaned(text: str) -> str:
    # escapes such as \ud800 become lone surrogates, which no tokenizer or file takes
    return clean_text(text).strip()


def check_tag(name: str) -> None:
    """Refuse what can't name a tag.

    Raises:
        WorkflowError: it is not made of letters, digits, "_" and "-".
    """
    if not name.replace("_", "").replace("-", "").isalnum():
        raise WorkflowError(f"a tag is letters, digits, '_' and '-'; got {name!r}")


class Tagged(NamedTuple):
    """What stands between a tag and its close, stripped, and where both together stand in the text."""

    content: str
    start: int
    end: int


def tagged(name: str, text: str) -> list[Tagged]:
    """All `<name>…</name>` in order: an open tag and the first close after it. Case does not count."""
    spans: list[Tagged] = []
    opened: re.Match[str] | None = None
    for mark in _mark(name).finditer(text):
        if not mark[1]:
            opened = opened or mark
        elif opened is not None:
            spans.append(Tagged(text[opened.end() : mark.start()].strip(), opened.start(), mark.end()))
            opened = None
    return spans


def outside(spans: Iterable[Tagged], text: str) -> str:
    """What of `text` stands in none of the spans, stripped."""
    end, pieces = 0, []
    for span in sorted(spans, key=lambda span: span.start):
        pieces.append(text[end : span.start])
        end = max(end, span.end)
    return "".join([*pieces, text[end:]]).strip()


def _mark(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){re.escape(name)}>", re.IGNORECASE)


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
