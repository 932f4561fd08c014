"""Files of traces: JSON lines one at a time, a JSON file whole, folders and patterns of both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fsspec

from pipeline.traces.problem import refuse_constant
from stages.tables.filesystem import filesystem, reached
from workflows.errors import UsageError

_LINES: Final = (".jsonl", ".ndjson")
SUFFIXES: Final = (*_LINES, ".json")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `offset` is where its line begins, None in a file that is read whole.

    `value` is the JSON value; where the text is none, None, and `fault` says why.
    """

    file: str
    number: int  # line in a file of lines, else position in its list, from 1
    value: Any
    offset: int | None = None
    fault: str | None = None

    @property
    def where(self) -> str:
        return f"{self.file}, {'line' if self.offset is not None else 'trace'} {self.number}"


def files_of(paths: Sequence[str]) -> list[str]:
    """The files of traces that paths, folders and patterns name, each once.

    Raises:
        UsageError: a path names none.
    """
    found: dict[str, None] = {}
    for path in paths:
        fs, name = filesystem(path)
        with reached(fs, path):
            if fs.isdir(name):
                inside = [p for p in sorted(fs.find(name)) if p.endswith(SUFFIXES)]
            else:
                inside = sorted(fs.glob(name)) if any(c in name for c in "*?[") else [name]
                inside = [p for p in inside if fs.isfile(p)]
        if not inside:
            raise UsageError(
                f"there is no file of traces at {path!r}; name a {' or '.join(SUFFIXES)} file, a folder of "
                "such files, or a pattern"
            )
        found |= dict.fromkeys(str(fs.unstrip_protocol(p)) if "://" in path else p for p in inside)
    return list(found)


def documents(file: str) -> Iterator[Document]:
    """The documents of a file, in order. Lines are read one at a time: memory is that of one line.

    Raises:
        UsageError: the file can't be read.
    """
    try:
        with fsspec.open(file, "rb") as opened:
            yield from _lines(file, opened) if file.endswith(_LINES) else _whole(file, opened.read())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error}") from None


def document_at(file: str, offset: int | None, number: int) -> Any:
    """The JSON value of one document, found by its offset, or by its number in a file that is read whole."""
    with fsspec.open(file, "rb") as opened:
        if offset is None:
            value = json.loads(opened.read(), parse_constant=refuse_constant)
            return value[number - 1] if isinstance(value, list) else value
        opened.seek(offset)
        return json.loads(opened.readline(), parse_constant=refuse_constant)


def _lines(file: str, opened: Any) -> Iterator[Document]:
    offset = 0
    for number, line in enumerate(opened, 1):
        if line.strip():
            value, fault = _parsed(line)
            yield Document(file, number, value, offset, fault)
        offset += len(line)


def _whole(file: str, data: bytes) -> Iterator[Document]:
    value, fault = _parsed(data)
    values = value if isinstance(value, list) else [value]
    for number, each in enumerate(values, 1):
        yield Document(file, number, each, fault=fault)


def _parsed(data: bytes) -> tuple[Any, str | None]:
    try:
        return json.loads(data, parse_constant=refuse_constant), None
    except (ValueError, RecursionError) as error:
        return None, f"it is no JSON: {error}"
