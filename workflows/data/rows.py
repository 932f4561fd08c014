"""Rows of a file, numbered, whatever its format. A broken row is a value, not the end of the reading."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Final, NoReturn

import fsspec
import pyarrow.parquet as pq

from workflows.data import SHIPPED
from workflows.errors import DataError, did_you_mean
from workflows.trajectory import clean_text

READ_ROWS: Final = 10_000  # rows of a Parquet file that are held as Python objects at a time

_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zip")


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that can't be decoded, and why."""

    reason: str


def read_rows(path: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Yield `(row number from 1, decoded row or Broken)`.

    Reads .jsonl (numbered by line, blank lines skipped), .json (a list, or JSON lines), .csv (by its
    header) and .parquet, the text formats also compressed, from any fsspec URL. Text is UTF-8; lone
    surrogates are replaced. `columns` saves reading the others of a Parquet file that has all of them.

    Raises:
        DataError: no such file, of no such format, or not readable as that format from its start.
    """
    name = path.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    try:
        if name.endswith(".parquet"):
            yield from _parquet(path, columns)
        elif name.endswith((".jsonl", ".ndjson", ".json", ".csv")):
            with fsspec.open(path, "rb", compression="infer") as file:
                yield from _csv(file) if name.endswith(".csv") else _json(file)
        else:
            raise DataError(
                f"{path!r} is no .jsonl, .json, .csv or .parquet file and no built-in name"
                f"{did_you_mean(path, SHIPPED)}; built in: {', '.join(SHIPPED)}"
            )
    # pyarrow's and fsspec's errors are of these kinds; ImportError: the package for a URL's protocol
    except (OSError, ValueError, ImportError, RecursionError, csv.Error) as error:
        raise DataError(f"{path!r} can't be read: {error}") from error


def _json(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    lines = iter(file)
    first = next((line for line in lines if line.strip()), b"")
    if first.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        rows = json.loads(b"".join([first, *lines]).decode("utf-8-sig"), parse_constant=_refuse)
        yield from ((number, _cleaned(row)) for number, row in enumerate(rows, 1))
        return
    file.seek(0)
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, _decode(line)


def _decode(line: bytes) -> Any:
    try:
        return _cleaned(json.loads(line.decode("utf-8-sig"), parse_constant=_refuse))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        return Broken(f"not JSON ({error})")


def _csv(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    for number, row in enumerate(csv.DictReader(text, strict=True), 1):
        if None in row:
            yield number, Broken("more fields than the header has names")
        else:
            yield number, row


def _parquet(path: str, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    with fsspec.open(path, "rb") as file:
        parquet = pq.ParquetFile(file)
        only = list(columns) if columns and set(columns) <= set(parquet.schema_arrow.names) else None
        rows = (batch.to_pylist() for batch in parquet.iter_batches(READ_ROWS, columns=only))
        yield from enumerate(chain.from_iterable(rows), 1)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
