"""Rows of one file, numbered, whatever its format. A broken row is a value, not the end of the reading."""

from __future__ import annotations

import csv
import io
import json
import lzma
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Final, NoReturn

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from workflows.data import SHIPPED
from workflows.errors import DataError, did_you_mean
from workflows.trajectory import clean_text

READ_ROWS: Final = 10_000  # rows of a columnar file that are held as Python objects at a time
TEXT_FORMATS: Final = (".jsonl", ".ndjson", ".json", ".csv")
COLUMNAR_FORMATS: Final = (".parquet", ".arrow")

_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zip")


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that can't be decoded, and why."""

    reason: str


def read_rows(path: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Yield `(row number from 1, decoded row or Broken)`.

    Reads .jsonl (numbered by line, blank lines skipped), .json (a list, an object whose `data` is one,
    a single object, or JSON lines), .csv (by its header; an empty field is null), .parquet and .arrow
    (NaN is null, which is how gaps arrive there), the text formats also compressed, from any fsspec
    URL. Text is UTF-8; lone surrogates are replaced. `columns` saves reading the others of a Parquet
    file that has all of them.

    Raises:
        DataError: no such file, of no such format, or not readable as that format from its start.
    """
    name = format_name(path)
    try:
        if name.endswith(COLUMNAR_FORMATS):
            with fsspec.open(path, "rb") as file:
                yield from _columnar(file, columns, name.endswith(".parquet"))
        elif name.endswith(TEXT_FORMATS):
            with fsspec.open(path, "rb", compression="infer") as file:
                if name.endswith(".csv"):
                    yield from _csv(file)
                elif name.endswith(".json"):
                    yield from _json(file)
                else:
                    yield from _lines(file)
        else:
            raise DataError(
                f"{path!r} is no .jsonl, .json, .csv, .parquet or .arrow file and no built-in name"
                f"{did_you_mean(path, SHIPPED)}; built in: {', '.join(SHIPPED)}"
            )
    # pyarrow's and fsspec's errors are of the first kinds; ImportError: the package for a URL's
    # protocol; the last three: a compressed file that is cut short or damaged
    except (
        OSError,
        ValueError,
        ImportError,
        RecursionError,
        csv.Error,
        EOFError,
        zlib.error,
        lzma.LZMAError,
    ) as e:
        raise DataError(f"{path!r} can't be read: {e}") from e


def format_name(path: str) -> str:
    """The name that tells a file's format: lower case, without a compression's ending or a URL's query."""
    name = path.lower()
    if name.startswith(("http://", "https://")):
        name = name.partition("?")[0]
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return name


def _json(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """A document or lines: lines where the first line alone is JSON and others follow."""
    lines = iter(file)
    first = next((line for line in lines if line.strip()), b"")
    second = next((line for line in lines if line.strip()), b"")
    if first.lstrip(b"\xef\xbb\xbf \t").startswith(b"[") or not second or isinstance(_decode(first), Broken):
        document = b"".join([first, second, *lines])
        try:
            decoded = json.loads(document.decode("utf-8-sig"), parse_constant=_refuse) if document else []
        except (ValueError, RecursionError):
            if document.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
                raise
        else:
            if isinstance(decoded, dict) and isinstance(decoded.get("data"), list):
                decoded = decoded["data"]
            rows = decoded if isinstance(decoded, list) else [decoded]
            yield from ((number, _cleaned(row)) for number, row in enumerate(rows, 1))
            return
    file.seek(0)
    yield from _lines(file)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
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
            yield number, {key: value or None for key, value in row.items()}


def _columnar(file: IO[bytes], columns: Sequence[str] | None, parquet: bool) -> Iterator[tuple[int, Any]]:
    batches: Iterator[pa.RecordBatch]
    if parquet:
        source = pq.ParquetFile(file, pre_buffer=False)
        schema = source.schema_arrow
        only = list(columns) if columns and set(columns) <= set(schema.names) else None
        batches = source.iter_batches(READ_ROWS, columns=only, use_threads=False)
    else:
        stream = _arrow(file)
        schema, batches = stream.schema, iter(stream.to_batches(max_chunksize=READ_ROWS))
    rows: Iterator[Any] = chain.from_iterable(batch.to_pylist() for batch in batches)
    if any(_has_floats(field.type) for field in schema):
        rows = map(_without_nan, rows)
    yield from enumerate(rows, 1)


def _arrow(file: IO[bytes]) -> pa.Table:
    try:
        return pa.ipc.open_stream(file).read_all()
    except pa.ArrowInvalid:  # the other of Arrow's two file formats
        file.seek(0)
        return pa.ipc.open_file(file).read_all()


def _has_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return value


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
