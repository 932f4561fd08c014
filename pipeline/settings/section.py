"""What all sections of the settings file are made of, and how a wrong one is explained."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.settings.elsewhere import elsewhere
from workflows.errors import UsageError, did_you_mean

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
Name = Annotated[str, Field(pattern=_NAME)]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def is_name(text: str) -> bool:
    """Whether a text can be the name of a run, a reward or a metric."""
    return re.fullmatch(_NAME, text) is not None


@dataclass(frozen=True, slots=True)
class KeysOf:
    """Annotates a table whose keys are some of those of another section, such as [models.<id>.ppo]."""

    section: type[Section]
    also: frozenset[str] = frozenset()  # numbers that the table may have besides


class Section(BaseModel):
    """Base of all sections: a section refuses unknown keys, and its values can't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Keys that a version after the first runs added: with their default they are in no fingerprint."""

    def settled(self) -> Self:
        """The section with values in the place of keys whose default depends on another key."""
        return self

    def fingerprint(self) -> dict[str, Any]:
        """The section as plain values, without keys of `later` that have their default.

        A run that an older version began goes on, because a key that it did not know changes nothing.
        """
        return dict(_without_later(self))


def _without_later(value: Any, dump: Any = None) -> Any:
    """`dump`, the plain form of `value`, without the later keys of the sections in it, which are settled."""
    if isinstance(value, Section):
        value = value.settled()
        fields, dump = type(value).model_fields, value.model_dump(mode="json")
        kept = {
            key: getattr(value, key)
            for key in dump
            if key not in value.later
            or getattr(value, key) != fields[key].get_default(call_default_factory=True)
        }
        return {key: _without_later(each, dump[key]) for key, each in kept.items()}
    if isinstance(value, Mapping):
        return {key: _without_later(each, dump[key]) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_later(each, plain) for each, plain in zip(value, dump, strict=True)]
    return dump


def validate(
    model: type[Any], raw: Mapping[str, Any], where: str, source: Callable[[Sequence[Any]], str] | None = None
) -> Any:
    """`raw` as a section of the type `model`.

    Args:
        where: what the message begins with: a file, or a section's name.
        source: where the value at a path was set, for values that do not come from `where`.

    Raises:
        UsageError: one message with every key that is unknown and every value that is not as declared.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = [(problem["loc"], _explain(problem, model)) for problem in error.errors()]
        raise UsageError(joined_problems(problems, where, source)) from None


def joined_problems(
    problems: Sequence[tuple[Sequence[Any], str]],
    where: str,
    source: Callable[[Sequence[Any]], str] | None = None,
) -> str:
    """One message of problems with the path of each; it begins with where they all come from."""
    sources = [source(path) if source else where for path, _ in problems]
    texts = [text for _, text in problems]
    if len(set(sources)) == 1:
        head = texts[0] if len(texts) == 1 else f"{len(texts)} problems\n  " + "\n  ".join(texts)
        return f"{sources[0]}: {head}"
    lines = [f"{place}: {text}" for place, text in zip(sources, texts, strict=True)]
    return f"{len(lines)} problems\n  " + "\n  ".join(lines)


def _explain(problem: Any, model: type[BaseModel]) -> str:
    from pipeline.settings.keys import dotted

    path = [step for step in problem["loc"] if step != "[key]"]
    location = dotted(path)
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, problem["loc"][:-1])
        hint = did_you_mean(str(problem["loc"][-1]), known)
        return f"unknown key {location}{hint}" + ("" if hint else f"; known here: {', '.join(known)}")
    got = problem.get("input")
    if problem["type"] == "string_pattern_mismatch":
        longest = 64 if "{0,63}" in problem["ctx"]["pattern"] else 128
        return (
            f"{location} is {got!r}, expected 1 to {longest} letters, digits, `.`, `_` and `-`, the first "
            "one a letter or a digit; it names a folder, so it has no `/` and no spaces"
        )
    shown = f", got {got!r}" if not isinstance(got, dict | list) else ""
    hint = ""
    if problem["type"] == "literal_error" and isinstance(got, str):
        words = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        hint = elsewhere(dotted(path[-2:]), got) or did_you_mean(got, words)
    return f"{location}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}{hint}"


def _fields_at(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """Names of the fields of the section at `path`, walking through dicts and tuples of sections."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        annotation = fields[step].annotation if step in fields else current
        current = next((c for c in _sections_in(annotation)), current)
    return list(getattr(current, "model_fields", {}))


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for a in getattr(annotation, "__args__", ()) for s in _sections_in(a)]
