"""`docs/settings.md`: every section, key, type, default and meaning, read off the settings' types.

`python -m pipeline.settings.page` writes the page; a test holds the page to the types.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.settings.effects import acts_with
from pipeline.settings.schema import Settings

PAGE: Final = Path("docs/settings.md")
HEAD: Final = """# Settings

Every key of the settings file ([pipeline.toml](../pipeline.toml) is one). Each has a default, so a file holds what differs. An unknown key is refused with the closest match. `--set section.key=value` sets any key for one call:

- The value is TOML, but plain text where the key holds text: `--set run.name=1e5`. A table of options holds what JSON can: text, numbers, true, false, lists and tables; a date stands in quotes.
- A name with a dot stands in quotes, which a shell passes on inside other quotes: `--set 'models."qwen2.5-0.5b".train=false'`.
- `--set sharing.regime=` takes a key out, so that its default holds again; `none` does so too, where a key may be absent and `none` is not one of its words.
- `--set rewards.1.weight=0.5` changes an entry of a list, the index after the last one appends an entry, and so does `--set 'rewards+={use = "format"}'`.

This page is made from the types in [pipeline/settings](../pipeline/settings): `python -m pipeline.settings.page` writes it, and a test holds it to them.
"""  # noqa: E501
_WORDS: Final = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}
_ORDER: Final = (Ge, Gt, Le, Lt)


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the page: how it is written in TOML, its type, and what it is."""

    header: str
    section: type[BaseModel]


def parts() -> list[Part]:
    """All sections in the order of the file; one that stands in several places is there once."""
    first: dict[type[BaseModel], Part] = {}
    for part in _parts(Settings, ""):
        first.setdefault(part.section, part)
    return list(first.values())


def page() -> str:
    """The page as Markdown."""
    known = {part.section: part.header for part in parts()}
    return HEAD + "".join(_section(part, known) for part in parts())


def _parts(section: type[BaseModel], prefix: str) -> Iterator[Part]:
    for name, field in section.model_fields.items():
        for inner in _sections_in(field.annotation):
            shape = _shape(field.annotation)
            path = prefix + name
            if shape is dict:
                path += ".<id>" if name == "models" else ".<name>"
            yield Part(f"[[{path}]]" if shape is tuple else f"[{path}]", inner)
            yield from _parts(inner, f"{path}.")


def _section(part: Part, known: dict[type[BaseModel], str]) -> str:
    doc = (part.section.__doc__ or "").strip().splitlines()
    lines = ["", f"## `{part.header}`", "", *([_marked(doc[0]), ""] if doc else [])]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in part.section.model_fields.items():
        cells = (
            f"`{name}`",
            _type(field, known),
            _default(field),
            _marked(" ".join((field.description or "").split())) + _effect(part, name),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _effect(part: Part, name: str) -> str:
    """What another key must be for this one to act, as a sentence after its meaning."""
    words = acts_with(f"{part.header.strip('[]')}.{name}")
    return f" Acts with `{words}`." if words else ""


def _marked(text: str) -> str:
    """`text` with the names of sections, such as [models.<id>], in code marks: `<id>` is a tag otherwise."""
    return re.sub(r"(?<!`)(\[{1,2}[\w.<>]+\]{1,2})", r"`\1`", text)


def _type(field: FieldInfo, known: dict[type[BaseModel], str]) -> str:
    return _named(field.annotation, field.metadata, known)


def _named(annotation: Any, metadata: Sequence[Any], known: dict[type[BaseModel], str]) -> str:
    """A type in words: `integer from 1`, `number from 0 to 1`, `"full" or "separate"`, `list of text`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _named(arguments[0], arguments[1:], known)
    if annotation in known:
        return f"section `{known[annotation]}`"
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (types.UnionType, typing.Union):
        some = [_named(a, metadata, known) for a in arguments if a is not type(None)]
        return " or ".join(dict.fromkeys(some))
    if origin is tuple:
        if Ellipsis not in arguments:
            kind, comma, bounds = _named(arguments[0], (), known).partition(",")
            return f"list of {len(arguments)} {kind}s{comma}{bounds}"
        return f"list of {_named(arguments[0], (), known)}"
    if origin is dict:
        held = _named(arguments[1], (), known)
        return (
            "table" if arguments[1] is Any else f"table of ({held})" if " or " in held else f"table of {held}"
        )
    return _WORDS[annotation] + _range(metadata)


def _range(metadata: Sequence[Any]) -> str:
    bounds = sorted(
        (m for m in _flat(metadata) if isinstance(m, _ORDER)), key=lambda m: _ORDER.index(type(m))
    )
    words = {Ge: "from {0.ge}", Gt: "above {0.gt}", Le: "at most {0.le}", Lt: "below {0.lt}"}
    said = ", ".join(words[type(bound)].format(bound) for bound in bounds)
    return f", {said}" if said else ""


def _flat(metadata: Sequence[Any]) -> Iterator[Any]:
    for item in metadata:
        yield from _flat(item.metadata) if isinstance(item, FieldInfo) else [item]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == () or value == {} or isinstance(value, BaseModel):
        return "–"
    if isinstance(value, tuple) and isinstance(value[0], BaseModel):
        return ", ".join(f"`{item.use}`" for item in value)
    if isinstance(value, tuple):
        return "`[" + ", ".join(_toml(v) for v in value) + "]`"
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("e-0", "e-")


def _shape(annotation: Any) -> Any:
    """dict or tuple where the field holds several sections, else None."""
    origin = typing.get_origin(annotation)
    return origin if origin in (dict, tuple) else None


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for a in typing.get_args(annotation) for s in _sections_in(a)]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
