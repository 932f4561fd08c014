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
from typing import Any

from workflows.engine import Message
from workflows.errors import CadreError, WorkflowError
from workflows.trajectory import clean_text, to_json

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}|[{}]")
_TEXT_KEYS = ("text", "document", "content")


class PromptTooLong(CadreError):
    """A prompt that does not fit even when everything that may be cut is cut."""

    def __init__(self, num_tokens: int, max_tokens: int, messages: list[Message], cut: dict[str, int]):
        super().__init__(f"prompt of {num_tokens} tokens exceeds {max_tokens} after trimming")
        self.num_tokens = num_tokens
        self.messages = messages
        self.cut = cut


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literal pieces (`str`) and paths (`tuple` of parts) in turn."""

    pieces: tuple[str | tuple[str, ...], ...]

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
class Prompt:
    """A prompt that fits: its messages, their ids, and how many items of which variable were cut."""

    messages: list[Message]
    token_ids: list[int]
    cut: dict[str, int]


def fit_prompt(
    build: Callable[[Mapping[str, Any]], list[Message]],
    variables: Mapping[str, Any],
    trim: Sequence[str],
    render: Callable[[Sequence[Message]], list[int]],
    max_tokens: int,
) -> Prompt:
    """Drop as few items as needed until the rendered prompt has at most `max_tokens` ids.

    Items go from the end of the first variable of `trim`, then of the second, and so on; nothing else
    is ever cut. The number to drop is found by bisection: a prompt is rendered about log2(items) times.

    Raises:
        PromptTooLong: it does not fit with all of them gone.
        WorkflowError: a `trim` variable that is not a list, or a path that leads nowhere.
    """
    for name in trim:
        if not isinstance(variables.get(name, ()), list | tuple):
            raise WorkflowError(
                f"variable {name!r} may be trimmed, so it must be a list, not {_describe(variables[name])}"
            )

    def attempt(dropped: int) -> Prompt:
        cut, kept = _drop(variables, trim, dropped)
        messages = [
            Message(role=m["role"], content=clean_text(m["content"])) for m in build({**variables, **kept})
        ]
        return Prompt(messages, list(render(messages)), cut)

    prompt = attempt(0)
    if len(prompt.token_ids) <= max_tokens:
        return prompt
    low, high = 0, sum(len(variables.get(name, ())) for name in trim)  # low does not fit
    prompt = attempt(high)
    if len(prompt.token_ids) > max_tokens:
        raise PromptTooLong(len(prompt.token_ids), max_tokens, prompt.messages, prompt.cut)
    while high - low > 1:
        middle = (low + high) // 2
        shorter = attempt(middle)
        if len(shorter.token_ids) <= max_tokens:
            high, prompt = middle, shorter
        else:
            low = middle
    return prompt


def _drop(
    variables: Mapping[str, Any], trim: Sequence[str], dropped: int
) -> tuple[dict[str, int], dict[str, Any]]:
    """How many items each variable of `trim` loses when `dropped` go, and what stays of it."""
    cut, kept = {}, {}
    for name in trim:
        items = variables.get(name, ())
        if number := min(dropped, len(items)):
            cut[name] = number
            kept[name] = items[: len(items) - number]
            dropped -= number
    return cut, kept
