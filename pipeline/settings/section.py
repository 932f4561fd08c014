"""What all sections of the settings file are made of, and how a wrong one is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workflows.errors import UsageError, did_you_mean

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Section(BaseModel):
    """Base of all sections: a section refuses unknown keys, and its values can't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Keys that a version after the first runs added: with their default they are in no fingerprint."""

    def fingerprint(self) -> dict[str, Any]:
        """The section as plain values, without keys of `later` that have their default.

        A run that an older version began goes on, because a key that it did not know changes nothing.
        """
        return dict(_without_later(self, self.model_dump(mode="json")))


def _without_later(value: Any, dump: Any) -> Any:
    """`dump`, the plain form of `value`, without the later keys of the sections in it."""
    if isinstance(value, Section):
        fields = type(value).model_fields
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


def validate(model: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """`raw` as a section of the type `model`.

    Args:
        where: what the message begins with: a file, or a section's name.

    Raises:
        UsageError: one message with every key that is unknown and every value that is not as declared.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_explain(error, model, where)) from None


def _explain(error: ValidationError, model: type[BaseModel], where: str) -> str:
    problems = [_explain_one(e, model) for e in error.errors()]
    head = problems[0] if len(problems) == 1 else f"{len(problems)} problems\n  " + "\n  ".join(problems)
    return f"{where}: {head}"


def _explain_one(problem: Any, model: type[BaseModel]) -> str:
    location = ".".join(str(p) for p in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, problem["loc"][:-1])
        hint = did_you_mean(str(problem["loc"][-1]), known)
        return f"unknown key {location}{hint}" + ("" if hint else f"; known here: {', '.join(known)}")
    got = problem.get("input")
    shown = f", got {got!r}" if not isinstance(got, dict | list) else ""
    return f"{location}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}"


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
