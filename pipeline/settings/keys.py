"""Dotted keys of settings, such as `models."qwen2.5-0.5b".ppo.loss`, and the type that stands at one."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel

from pipeline.settings.section import KeysOf
from workflows.errors import UsageError

Path = tuple[str, ...]

_PART: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^."'=\s](?:[^."'=]*[^."'=+\s])?))\s*""")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def split_key(text: str, where: str) -> tuple[Path, str]:
    """The parts of the dotted key that `text` begins with, and the text after it.

    A part that has a dot is written in quotes, as in TOML: `models."qwen2.5-0.5b".train`.

    Raises:
        UsageError: `text` does not begin with a key.
    """
    parts, place = [], 0
    while match := _PART.match(text, place):
        double, single, bare = match.groups()
        parts.append(json.loads(f'"{double}"') if double is not None else single or bare or "")
        place = match.end()
        if not text.startswith(".", place):
            return tuple(parts), text[place:]
        place += 1
    raise UsageError(f"{where}: expected KEY=VALUE, for example --set rollout.group_size=4")


def dotted(path: Sequence[Any]) -> str:
    """A path as a key that `split_key` reads: parts with a dot or another special character in quotes."""
    words = [str(part) for part in path]
    return ".".join(word if _BARE.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in words)


def types_at(section: type[BaseModel], path: Sequence[str]) -> list[Any]:
    """The types that a value at `path` may have: str, int, …, `NoneType`, a section, `Any`, or a `Literal`.

    An empty list means that the settings have no such key.
    """
    arms: list[Any] = [section]
    for step in path:
        arms = [arm for each in arms for arm in _inside(each, step)]
    return arms


def arms_of(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[Any]:
    """The members of a union, without what annotates them; a table of a section's keys as `KeysOf`."""
    for each in metadata:
        if isinstance(each, KeysOf):
            yield each
            return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from arms_of(arguments[0], arguments[1:])
    elif origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from arms_of(argument)
    else:
        yield annotation


def is_text(arm: Any) -> bool:
    """Whether an arm is text, free or one of some words."""
    words = typing.get_args(arm) if typing.get_origin(arm) is Literal else None
    return arm is str or (words is not None and all(isinstance(word, str) for word in words))


def _inside(arm: Any, step: str) -> Iterator[Any]:
    origin, arguments = typing.get_origin(arm), typing.get_args(arm)
    if isinstance(arm, KeysOf):
        yield from [float] if step in arm.also else _inside(arm.section, step)
    elif arm is Any:
        yield Any
    elif isinstance(arm, type) and issubclass(arm, BaseModel):
        if step in arm.model_fields:
            field = arm.model_fields[step]
            yield from arms_of(field.annotation, field.metadata)
    elif origin is dict:
        yield from arms_of(arguments[1])
    elif origin is tuple and step.isdigit():
        yield from arms_of(arguments[0])
