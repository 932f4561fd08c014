"""Prompt templates, and making an over-long prompt fit without losing its question.

A template is text with `{dotted.path}` placeholders; `{{` and `}}` are literal braces. The first part
of a path is a *variable*: the names that a template needs are known without running anything, so a
workflow is refused when a step forgets one. A path that leads nowhere is an error, never an empty string.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from workflows.engine import Message
from workflows.errors import CadreError, WorkflowError
from workflows.trajectory import clean_text, to_json

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}|[{}]")
_TEXT_KEYS = ("text", "document", "content")
CUT_MARK: Final = "[…]"


class PromptTooLong(CadreError):
    """A prompt that does not fit even when everything that may be cut is cut."""

    def __init__(
        self, num_tokens: int, max_tokens: int, messages: list[Message], cut: dict[str, dict[str, int]]
    ):
        super().__init__(f"prompt_too_long: {num_tokens} tokens exceed {max_tokens} after trimming")
        self.num_tokens = num_tokens
        self.messages = messages
        self.cut = cut


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literal pieces (`str`) and paths (`tuple` of parts) in turn."""

    pieces: tuple[str | tuple[str, ...], ...]

    @property
    def literal(self) -> str:
        """The text without any value: what every prompt of this template has at least."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def variables(self) -> tuple[str, ...]:
        """First parts of all paths, in order of appearance, each once."""
        return tuple(dict.fromkeys(p[0] for p in self.pieces if isinstance(p, tuple)))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Values are inserted as they are: braces inside them are not placeholders.

        Raises:
            WorkflowError: a path leads nowhere.
        """
        return "".join(p if isinstance(p, str) else render_value(lookup(variables, p)) for p in self.pieces)


@functools.lru_cache(maxsize=256)
def parse_template(text: str) -> Template:
    """Parse a template.

    Raises:
        WorkflowError: a brace that is neither doubled nor part of a placeholder.
    """
    pieces: list[str | tuple[str, ...]] = []
    literal, end = "", 0
    for match in _TOKEN.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match.group() in ("{{", "}}"):
            literal += match.group()[0]
        elif match.group(1):
            pieces += [literal, tuple(match.group(1).split("."))]
            literal = ""
        else:
            raise WorkflowError(
                f"prompt has a lone {match.group()!r} at character {match.start()}, near "
                f"{text[max(0, match.start() - 15) : match.start() + 15]!r}; "
                "write {name} for a variable, {{ and }} for braces"
            )
    return Template(tuple(p for p in [*pieces, literal + text[end:]] if p))


def lookup(value: Any, path: Sequence[str]) -> Any:
    """Follow `path` through mappings (by key) and lists (by index).

    Raises:
        WorkflowError: a part that is not there. The message says what is.
    """
    for depth, part in enumerate(path):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise WorkflowError(
                f"path {'.'.join(path)!r} leads nowhere: {'.'.join(path[:depth]) or 'the top'} is "
                f"{_describe(value)} and has no {part!r}"
            )
    return value


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping of {', '.join(sorted(map(str, value))) or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def render_value(value: Any) -> str:
    """A value as prompt text: None is empty, lists are lines, a mapping is its text, else JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "\n".join(render_value(item) for item in value)
    if isinstance(value, Mapping):
        for key in _TEXT_KEYS:
            if key in value:
                return render_value(value[key])
        if {"title", "snippet"} <= value.keys():
            return f"{value['title']}: {value['snippet']}"
    return to_json(value)


@dataclass(frozen=True, slots=True)
class Trim:
    """How one variable of a prompt gives way when the prompt is too long.

    Args:
        variable: its name. Its value is a list, or with `by="word"` also one text.
        drop: where it is cut: "last" suits documents, best first; "first" suits a history, newest last.
        by: "item" drops whole items of the list. "word" drops words, and leaves a mark where a text was
            cut; an item without words left is dropped whole. A word ends at white space.

    Raises:
        WorkflowError: another `drop` or `by`.
    """

    variable: str
    drop: Literal["last", "first"] = "last"
    by: Literal["item", "word"] = "item"

    def __post_init__(self) -> None:
        if self.drop not in ("last", "first") or self.by not in ("item", "word"):
            raise WorkflowError(
                f"trim of {self.variable!r}: drop is 'last' or 'first' and by is 'item' or 'word', "
                f"got {self.drop!r} and {self.by!r}"
            )

    def size(self, value: Any) -> int:
        """How much can be dropped: items, or words.

        Raises:
            WorkflowError: a value that can't be cut this way.
        """
        words = self.by == "word"
        if words and isinstance(value, str):
            return len(_words(value))
        if not isinstance(value, list | tuple):
            wanted = "a text or a list of texts" if words else "a list"
            raise WorkflowError(
                f"variable {self.variable!r} may be trimmed, so it must be {wanted}, not {_describe(value)}"
            )
        return sum(max(1, len(_words(render_value(item)))) for item in value) if words else len(value)

    def without(self, value: Any, dropped: int) -> Any:
        """What is left when `dropped` items or words are gone."""
        if self.by == "item":
            return value[dropped:] if self.drop == "first" else value[: len(value) - dropped]
        if isinstance(value, str):
            return _shorten(value, dropped, self.drop)
        kept = []
        for item in value if self.drop == "first" else reversed(value):
            text = render_value(item)
            size = max(1, len(_words(text)))
            if dropped < size:
                kept.append(_shorten(text, dropped, self.drop))
            dropped = max(0, dropped - size)
        return kept if self.drop == "first" else kept[::-1]

    def cut(self, dropped: int) -> dict[str, int]:
        """For the row: what was dropped, by unit."""
        return {"words" if self.by == "word" else "items": dropped}


def _words(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\S+", text))


def _shorten(text: str, dropped: int, drop: str) -> str:
    words = _words(text)
    if not dropped:
        return text
    if dropped >= len(words):
        return CUT_MARK
    if drop == "first":
        return f"{CUT_MARK} {text[words[dropped].start() :]}"
    return f"{text[: words[-dropped - 1].end()]} {CUT_MARK}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits: its messages, their ids, and what was cut: `{variable: {"items": number}}`.

    The ids are None where the model takes messages and nobody here knows what it makes of them.
    """

    messages: list[Message]
    token_ids: list[int] | None
    cut: dict[str, dict[str, int]]


def fit_prompt(
    build: Callable[[Mapping[str, Any]], list[Message]],
    variables: Mapping[str, Any],
    trim: Sequence[Trim],
    render: Callable[[Sequence[Message]], list[int] | int],
    max_tokens: int,
) -> Prompt:
    """Drop as little as needed until the rendered prompt has at most `max_tokens` ids.

    `render` gives the ids of a chat, or only how many there would be.

    What the first of `trim` can give goes first, then what the second can, and so on; nothing else is
    ever cut. How much to drop is found by bisection: a prompt is rendered about log2(items) times.

    Raises:
        PromptTooLong: it does not fit with all of that gone.
        WorkflowError: a value that can't be trimmed as declared, or a path that leads nowhere.
    """
    sizes = [rule.size(variables.get(rule.variable, ())) for rule in trim]

    def attempt(dropped: int) -> tuple[Prompt, int]:
        cut, kept = {}, {}
        for rule, size in zip(trim, sizes, strict=True):
            if number := min(dropped, size):
                cut[rule.variable] = rule.cut(number)
                kept[rule.variable] = rule.without(variables[rule.variable], number)
                dropped -= number
        messages = [
            Message(role=m["role"], content=clean_text(m["content"])) for m in build({**variables, **kept})
        ]
        ids = render(messages)
        if isinstance(ids, int):
            return Prompt(messages, None, cut), ids
        return Prompt(messages, list(ids), cut), len(ids)

    prompt, length = attempt(0)
    if length <= max_tokens:
        return prompt
    low, high = 0, sum(sizes)  # low does not fit
    prompt, length = attempt(high)
    if length > max_tokens:
        raise PromptTooLong(length, max_tokens, prompt.messages, prompt.cut)
    while high - low > 1:
        middle = (low + high) // 2
        shorter, length = attempt(middle)
        if length <= max_tokens:
            high, prompt = middle, shorter
        else:
            low = middle
    return prompt
