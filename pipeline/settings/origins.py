"""Every setting of a plan with its value and where that comes from: the file, `--set`, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from pipeline.settings.keys import Path, dotted
from pipeline.settings.overrides import path_of
from pipeline.settings.schema import Settings
from pipeline.settings.section import Section
from pipeline.settings.training import DEFAULTS_OF_LOSS

OF_ROLES: Final = ("top_p", "top_k", "min_p")  # of [evaluate]: without a value, each role's of training


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the settings; `origin` is file, --set, default, `default of <loss>`, derived (from
    [sharing], or a base), or "training's, by role" for sampling that [evaluate] leaves to the roles."""

    key: str
    value: Any
    origin: str


def settings_with_origins(
    resolved: Settings, parsed: Settings, raw: Mapping[str, Any], overrides: Sequence[str]
) -> list[Setting]:
    """All settings in the order of the file.

    Args:
        resolved: the settings of the plan, without shorthands.
        parsed: the settings as they were read.
        raw: the tables of the file, with overrides in them.
        overrides: those of `--set`.
    """
    set_paths = [path_of(override) for override in overrides]
    read = dict(_leaves(parsed))
    settings = []
    for path, value in _leaves(resolved):
        if any(path[: len(each)] == each or each[: len(path)] == path for each in set_paths):
            origin = "--set"
        elif _is_in(raw, path):
            origin = "file"
        elif path in read and read[path] == value:
            of_loss = path[0] == "ppo" and path[-1] in DEFAULTS_OF_LOSS.get(resolved.ppo.loss, ())
            origin = f"default of {resolved.ppo.loss}" if of_loss else "default"
        else:
            origin = "derived"
        if value is None and path[0] == "evaluate" and path[-1] in OF_ROLES:
            value, origin = _of_roles(resolved, path[-1]), "training's, by role"
        settings.append(Setting(dotted(path), value, origin))
    return settings


def _of_roles(settings: Settings, key: str) -> Any:
    """What roles sample with where [evaluate] says nothing: one value, or by role where they differ."""
    values = {name: getattr(section.sampling, key) for name, section in settings.roles.items()}
    return next(iter(values.values())) if len(set(values.values())) == 1 else values


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key that is not a section, with its plain value: sections in tables and lists count by entry."""
    if isinstance(value, Section):
        value = value.settled()
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict) and any(isinstance(each, BaseModel) for each in value.values()):
        for name, each in value.items():
            yield from _leaves(each, (*path, str(name)))
    elif isinstance(value, tuple) and any(isinstance(each, BaseModel) for each in value):
        for place, each in enumerate(value):
            yield from _leaves(each, (*path, str(place)))
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _is_in(raw: Any, path: Path) -> bool:
    for step in path:
        if isinstance(raw, Mapping) and step in raw:
            raw = raw[step]
        elif isinstance(raw, list) and step.isdecimal() and int(step) < len(raw):
            raw = raw[int(step)]
        else:
            return False
    return True
