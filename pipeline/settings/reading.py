"""Settings files: how they are read, overridden by `--set`, and written back as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from pipeline.settings.overrides import path_of, set_override
from pipeline.settings.schema import Settings
from pipeline.settings.section import joined_problems, validate
from pipeline.settings.values import refusals
from workflows.errors import UsageError


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file and apply `--set key.path=value` overrides, values in TOML syntax.

    Raises:
        UsageError: the file is missing or not TOML, or a key or value is not as declared.
    """
    return parse_settings(read_settings(path, overrides), str(path), overrides)


def read_settings(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a settings file with `--set` overrides in them, before anything is validated.

    Raises:
        UsageError: the file is missing or not TOML, or an override has no place in it.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(
            f"no settings file {str(file)!r} in {Path.cwd()}; pass --config FILE, or start from the "
            "pipeline.toml that ships with Cadre"
        )
    raw = read_toml(file.read_bytes(), str(file))
    for override in overrides:
        set_override(raw, override)
    return raw


def read_toml(data: bytes, where: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UsageError: the data is not TOML in UTF-8; `where` names the file.
    """
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not valid TOML: {error}; correct the file at that place") from None


def parse_settings(
    raw: Mapping[str, Any], where: str = "settings", overrides: Sequence[str] = ()
) -> Settings:
    """Settings from nested mappings, each key checked by itself; `plan.resolve` checks them together.

    Args:
        where: what messages call the place of the settings, such as their file.
        overrides: those of `--set` that are in `raw`: a message about one of their keys names it.

    Raises:
        UsageError: every key that is unknown or whose value is not as declared.
    """
    changed = [(path_of(override), override) for override in overrides]

    def source(path: Sequence[Any]) -> str:
        steps = tuple(str(step) for step in path if step != "[key]")
        for key, override in reversed(changed):
            if key[: len(steps)] == steps or steps[: len(key)] == key:
                return f"--set {override!r}"
        return where

    if problems := list(refusals(raw)):
        raise UsageError(joined_problems(problems, where, source))
    settings: Settings = validate(Settings, raw, where, source)
    return settings


def settings_toml(settings: Settings) -> str:
    """`settings` as TOML, which reads back to the same settings: what a run keeps as settings.toml."""
    return tomlkit.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value
