"""The passages of a corpus file: rows of `{id, title, text}`, each checked when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from workflows.data import shipped_file
from workflows.data.rows import READ_ROWS, Broken, read_rows
from workflows.errors import DataError, did_you_mean
from workflows.tools.retriever_protocol import IDS, TEXTS, title_line

PASSAGES: Final = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])
# What other corpora call these columns.
_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "id": IDS,
    "title": ("name", "heading"),
    "text": (*TEXTS, "passage", "body"),
}


def read_corpus(corpus: str) -> pa.Table:
    """The passages as text columns `id`, `title`, `text`.

    Raises:
        DataError: no such file, no rows, or a row without these three texts, with a text or an id that is
            blank, or with the id of an earlier row. Names the file and the row.
    """
    rows = checked_rows(corpus)
    batches = []
    while chunk := list(islice(rows, READ_ROWS)):
        batches.append(pa.RecordBatch.from_pylist(chunk, schema=PASSAGES))
    if not batches:
        raise empty(corpus)
    return pa.Table.from_batches(batches)


def empty(corpus: str) -> DataError:
    """The error of a corpus without passages."""
    return DataError(f"corpus {corpus!r} has no passages; expected rows of {{id, title, text}}")


def checked_rows(corpus: str, columns: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Yield `{id, title, text}` of each row, after looking at it.

    Args:
        corpus: a built-in name, or a path of rows.
        columns: what the corpus calls `id`, `title` and `text`, where it has other names. A title called ""
            is the first line of the text, where that line stands in quotation marks, else blank.

    Raises:
        DataError: as `read_corpus`.
    """
    columns = columns or {}
    row_of: dict[str, int] = {}
    for number, row in read_rows(shipped_file(corpus, "corpus"), _names_in_file(columns)):
        if problem := _problem(row, columns):
            raise DataError(
                f"corpus {corpus!r}, row {number}: {problem}; expected {{id, title, text}} of texts, "
                "the id and the text not blank"
            )
        passage = _passage(row, columns)
        if (first := row_of.setdefault(passage["id"], number)) != number:
            raise DataError(
                f"corpus {corpus!r}, row {number}: its id {passage['id']!r} is that of row {first}; "
                "give every passage an id of its own"
            )
        yield passage


def passages(corpus: str, columns: Mapping[str, str], start: int) -> Iterator[dict[str, str]]:
    """The passages from number `start` on, of a corpus whose rows were all checked before."""
    rows = read_rows(shipped_file(corpus, "corpus"), _names_in_file(columns))
    for _, row in islice(rows, start, None):
        yield _passage(row, columns)


def _names_in_file(columns: Mapping[str, str]) -> list[str]:
    return [name for column in PASSAGES.names if (name := columns.get(column, column))]


def _passage(row: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    passage = {name: row[columns.get(name, name)] for name in PASSAGES.names if columns.get(name, name)}
    if "title" not in passage:
        passage["title"], passage["text"] = title_line(passage["text"])
    return passage


def _problem(row: Any, columns: Mapping[str, str]) -> str | None:
    if isinstance(row, Broken):
        return row.reason
    if not isinstance(row, Mapping):
        return f"got {row!r:.60}"
    for column in PASSAGES.names:
        name = columns.get(column, column)
        if not name:
            continue
        if name not in row:
            return f"no {name}{_closest(column, name, row)}, it has {', '.join(map(str, row)) or 'nothing'}"
        if not isinstance(row[name], str) or (column != "title" and not row[name].strip()):
            return f"{name} is {row[name]!r:.60}"
    return None


def _closest(column: str, name: str, row: Mapping[str, Any]) -> str:
    """A hint at the column that is meant: one of a name nearby, or of a name that others give it."""
    if hint := did_you_mean(name, map(str, row)):
        return hint
    other = next((other for other in _OTHER_NAMES[column] if other in row), None)
    return "" if other is None else did_you_mean(other, [other])
