"""What all sections of the settings file are made of, and how a wrong one is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

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
    """Unknown keys are refused, values can't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def validate(model: type[Any], raw: Mapping[str, Any], where: str) -> Any:
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
