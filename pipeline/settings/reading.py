"""Settings files: how they are read, overridden by `--set`, and written back as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from pipeline.settings.schema import Settings
from pipeline.settings.section import validate
from workflows.errors import UsageError
from workflows.trajectory import clean_text


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file and apply `--set key.path=value` overrides, values in TOML syntax.

    Raises:
        UsageError: the file is missing or not TOML, or a key or value is not as declared.
    """
    return parse_settings(read_settings(path, overrides), str(path))


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


def parse_settings(raw: Mapping[str, Any], where: str = "settings") -> Settings:
    """Settings from nested mappings, each key checked by itself; `plan.resolve` checks them together.

    Raises:
        UsageError: every key that is unknown or whose value is not as declared.
    """
    _refuse_surrogates(raw, where)
    settings: Settings = validate(Settings, raw, where)
    return settings


def _refuse_surrogates(value: Any, where: str, key: str = "") -> None:
    """Refuse text that no file can hold: bytes of a command line that are not UTF-8 arrive as such."""
    if isinstance(value, str):
        if value != clean_text(value):
            raise UsageError(
                f"{where}: {key or 'a key'} = {value!a} has characters that are not UTF-8 (lone surrogates); "
                "give it in UTF-8"
            )
    elif isinstance(value, Mapping):
        for name, each in value.items():
            _refuse_surrogates(str(name), where, f"a key of {key or 'the settings'}")
            _refuse_surrogates(each, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            _refuse_surrogates(each, where, f"{key}.{place}")


def settings_toml(settings: Settings) -> str:
    """`settings` as TOML, which reads back to the same settings: what a run keeps as settings.toml."""
    return tomlkit.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value


def set_override(raw: dict[str, Any], override: str) -> None:
    """Apply one override `key.path=value`, the value in TOML syntax, to nested settings.

    Raises:
        UsageError: the text has no key or no `=`, or the path leads nowhere.
    """
    key, separator, text = override.partition("=")
    if not separator or not all(p.strip() for p in key.split(".")):
        raise UsageError(f"--set {override!r}: expected KEY=VALUE, for example --set rollout.group_size=4")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string: --set run.name=first
    set_value(raw, key, value, f"--set {override!r}")


def set_value(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Put `value` at the dotted `key` of nested settings, and make the sections on the way.

    Raises:
        UsageError: the path leads through a value, or to an entry that a list does not have.
    """
    path = [p.strip() for p in key.split(".")]
    node: Any = raw
    for step in path[:-1]:
        node = node.setdefault(step, {}) if isinstance(node, dict) else _list_item(node, step, where)
    if isinstance(node, list):
        node[_index(node, path[-1], where)] = value
    elif isinstance(node, dict):
        node[path[-1]] = value
    else:
        raise UsageError(
            f"{where}: {'.'.join(path[:-1])} = {node!r} is a value, which has no key {path[-1]!r}; leave out "
            f"what follows {path[-2]!r}"
        )


def _index(node: list[Any], step: str, where: str) -> int:
    if not step.isdigit() or int(step) >= len(node):
        remedy = f"use a number from 0 to {len(node) - 1}" if node else "add the first one in the file"
        raise UsageError(f"{where}: {step!r} is not one of the {len(node)} entries of that list; {remedy}")
    return int(step)


def _list_item(node: Any, step: str, where: str) -> Any:
    if not isinstance(node, list):
        raise UsageError(
            f"{where}: {node!r} stands before {step!r}, where a section or a list is expected; leave out "
            f"{step!r} and what follows it"
        )
    return node[_index(node, step, where)]
