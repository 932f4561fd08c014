"""`--set KEY=VALUE`: one setting changed, unset or appended before the settings are checked.

`KEY=VALUE` sets; the value is TOML, but plain text where the key holds text. `KEY=` takes the key out, so
that its default holds again. `KEY+=VALUE` appends to a list, and so does the index after its last entry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel

from pipeline.settings.keys import Path, dotted, is_text, split_key, types_at
from pipeline.settings.schema import Settings
from workflows.errors import UsageError

EXAMPLE: Final = "for example --set rollout.group_size=4"
_UNSET: Final = object()
_NOTHING: Final = ("none", "null", "nil")
_BARE_WORDS: Final = {"true": "true", "false": "false"} | dict.fromkeys(_NOTHING)


def set_override(raw: dict[str, Any], override: str) -> None:
    """Apply one override to nested settings.

    Raises:
        UsageError: the text has no key or no `=`, or the path leads nowhere.
    """
    where = f"--set {override!r}"
    path, rest = split_key(override, where)
    append = rest.startswith("+=")
    if not (append or rest.startswith("=")):
        raise UsageError(f"{where}: expected KEY=VALUE, {EXAMPLE}")
    text = rest[2:] if append else rest[1:]
    if append:
        path = (*path, str(len(_list_at(raw, path, where))))
    arms = types_at(Settings, path)
    value = _value(text, arms, where)
    if value is not _UNSET:
        _put(raw, path, value, where)
    elif append or not arms:
        what = "a value to append" if append else "a key that the settings have"
        raise UsageError(f"{where}: expected {what}, {EXAMPLE}")
    else:
        _take_out(raw, path, where)


def path_of(override: str) -> Path:
    """The path that an override changes; of an appended entry, the path of its list."""
    return split_key(override, f"--set {override!r}")[0]


def set_value(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Put `value` at the dotted `key` of nested settings, and make the sections on the way.

    Raises:
        UsageError: the path leads through a value, or to an entry that a list does not have.
    """
    path, rest = split_key(key, where)
    if rest:
        raise UsageError(f"{where}: {key!r} is not a dotted key, such as rollout.group_size")
    _put(raw, path, value, where)


def _value(text: str, arms: Sequence[Any], where: str) -> Any:
    """What the text after `=` is, by the types that its key may have."""
    word = text.strip()
    if not word:
        return _UNSET
    as_text = any(map(is_text, arms))
    if type(None) in arms and str not in arms and word.lower() in _NOTHING and not _is_a_word(word, arms):
        return _UNSET
    value = _toml(word)
    if as_text:
        takes = tuple(map(_kind, arms))
        return value if isinstance(value, takes) else word
    if value is None:
        if Any in arms and (meant := _BARE_WORDS.get(word.lower(), word)) != word:
            remedy = f"write {meant}, or" if meant else "to take the key out, leave nothing after the =; else"
            raise UsageError(
                f'{where}: {word} is not a value of TOML; {remedy} "{word}" in quotes for the text'
            )
        return word
    return value


def _kind(arm: Any) -> type:
    """The type of the values of an arm, as TOML reads them."""
    kind = str if is_text(arm) else getattr(arm, "__origin__", arm)
    if not isinstance(kind, type) or kind is type(None):
        return str
    if issubclass(kind, BaseModel):
        return dict
    return list if kind is tuple else kind


def _is_a_word(word: str, arms: Sequence[Any]) -> bool:
    return any(word in getattr(arm, "__args__", ()) for arm in arms if is_text(arm))


def _toml(text: str) -> Any:
    """The text as a TOML value; None where it is not one."""
    try:
        tables = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return None
    return tables["v"] if tables.keys() == {"v"} else None


def _put(raw: dict[str, Any], path: Path, value: Any, where: str) -> None:
    node: Any = raw
    for place in range(len(path) - 1):
        node = _step(node, path, place, where)
    last = path[-1]
    if isinstance(node, list):
        index = _index(node, last, where)
        node[index : index + 1] = [value]
    elif isinstance(node, dict):
        _check_dots(node, path, len(path) - 1, where)
        node[last] = value
    else:
        raise UsageError(
            f"{where}: {dotted(path[:-1])} = {node!r} is a value, which has no key {last!r}; leave out "
            f"what follows {path[-2]!r}"
        )


def _step(node: Any, path: Path, place: int, where: str) -> Any:
    """What stands at `path[place]` inside `node`; made where it is missing."""
    step = path[place]
    if isinstance(node, dict):
        _check_dots(node, path, place, where)
        if step not in node:
            node[step] = _default(path[: place + 1])
        return node[step]
    if not isinstance(node, list):
        raise UsageError(
            f"{where}: {node!r} stands before {step!r}, where a section or a list is expected; leave out "
            f"{step!r} and what follows it"
        )
    index = _index(node, step, where)
    if index == len(node):
        node.append({})
    return node[index]


def _default(path: Path) -> Any:
    """What an absent key is before an override changes a part of it: a list has its default entries."""
    if not any(getattr(arm, "__origin__", None) is tuple for arm in types_at(Settings, path)):
        return {}
    section = next((a for a in types_at(Settings, path[:-1]) if isinstance(a, type)), None)
    if section is None or not issubclass(section, BaseModel):
        return []
    entries = section.model_fields[path[-1]].get_default(call_default_factory=True) or ()
    if isinstance(entries, str):
        return []
    return [e.model_dump(exclude_unset=True) if isinstance(e, BaseModel) else e for e in entries]


def _list_at(raw: dict[str, Any], path: Path, where: str) -> list[Any]:
    node: Any = raw
    for place in range(len(path)):
        node = _step(node, path, place, where)
    if not isinstance(node, list):
        raise UsageError(f"{where}: {dotted(path)} is not a list, so nothing can be appended; use = alone")
    return node


def _take_out(raw: dict[str, Any], path: Path, where: str) -> None:
    """Remove the key at `path`, if it is there."""
    node: Any = raw
    for place in range(len(path) - 1):
        if isinstance(node, dict) and path[place] not in node:
            return
        node = _step(node, path, place, where)
    if isinstance(node, list):
        if _index(node, path[-1], where) < len(node):
            del node[int(path[-1])]
    elif isinstance(node, dict):
        node.pop(path[-1], None)


def _index(node: list[Any], step: str, where: str) -> int:
    if not step.isdecimal() or int(step) > len(node):
        raise UsageError(
            f"{where}: {step!r} is not one of the {len(node)} entries of that list; use a number from 0 to "
            f"{len(node)}, where {len(node)} appends an entry"
        )
    return int(step)


def _check_dots(node: dict[str, Any], path: Path, place: int, where: str) -> None:
    """Refuse a name that was cut at its dots: `models.qwen2.5-0.5b` without quotes."""
    for name in node:
        parts = tuple(name.split("."))
        if len(parts) > 1 and path[place : place + len(parts)] == parts and path[place] not in node:
            fixed = dotted((*path[:place], name, *path[place + len(parts) :]))
            raise UsageError(
                f"{where}: {name!r} has a dot, so it stands in quotes, which a shell passes on inside other "
                f"quotes: --set '{fixed}=…'"
            )
