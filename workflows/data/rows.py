"""Rows of one file, numbered, whatever its format. A broken row is a value, not the end of the reading."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Final, NoReturn

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from workflows.data.missing import exists, missing
from workflows.errors import DataError
from workflows.trajectory import clean_text

READ_ROWS: Final = 10_000  # rows of a columnar file that are held as Python objects at a time
TEXT_FORMATS: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
COLUMNAR_FORMATS: Final = (".parquet", ".arrow")

_MAX_FIELD: Final = 2**31 - 1  # characters of a field of a CSV file; Python's own limit is 131,072
_MARKS: Final = (  # byte-order marks; the longer ones first, because UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zip")


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that can't be decoded, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How text files are read, where they do not say so themselves.

    Attributes:
        delimiter: between the fields of a .csv file. A .tsv file has tabs.
        encoding: of text files. A byte-order mark of UTF-8, UTF-16 or UTF-32 wins over it.

    Raises:
        DataError: a delimiter that is not one character, or an encoding that Python does not know.
    """

    delimiter: str = ","
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise DataError(
                f"[data] delimiter is {self.delimiter!r}, expected one character between the fields of a "
                r'.csv file, for example ";" or "\t"'
            )
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise DataError(
                f"[data] encoding is {self.encoding!r}, which names no text encoding; expected for example "
                "utf-8, latin-1, cp1252, utf-16, gb18030 or shift_jis"
            ) from None


def read_rows(
    path: str, columns: Sequence[str] | None = None, reading: Reading | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield `(row number from 1, decoded row or Broken)`.

    Reads .jsonl (numbered by line, blank lines skipped), .json (a list, an object whose `data` is one,
    a single object, or JSON lines), .csv (by its header; an empty field is null), .parquet and .arrow
    (NaN is null, which is how gaps arrive there), the text formats also compressed, from any fsspec
    URL. Text is UTF-8; lone surrogates are replaced. `columns` saves reading the others of a Parquet
    file that has all of them.

    Raises:
        DataError: no such file, of no such format, or not readable as that format from its start.
    """
    name, reading = format_name(path), reading or Reading()
    try:
        if name.endswith(COLUMNAR_FORMATS):
            with fsspec.open(path, "rb") as file:
                yield from _columnar(file, columns, name.endswith(".parquet"))
        elif name.endswith(TEXT_FORMATS):
            with fsspec.open(path, "rb", compression="infer") as raw:
                file = _as_utf8(raw, reading.encoding)
                if name.endswith((".csv", ".tsv")):
                    yield from _csv(file, "\t" if name.endswith(".tsv") else reading.delimiter)
                elif name.endswith(".json"):
                    yield from _json(file)
                else:
                    yield from _lines(file)
        elif not exists(path):
            raise DataError(missing(path))
        else:
            raise DataError(
                f"{path!r} is of a kind that can't be read; expected a file that ends in "
                f"{', '.join((*TEXT_FORMATS, *COLUMNAR_FORMATS))}"
            )
    except FileNotFoundError as error:
        raise DataError(missing(path)) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path!r} is not text in {error.encoding}: byte {error.object[error.start]:#04x} at "
            f"{error.start} is not; set [data] encoding, for example "
            f'encoding = "{"utf-8" if error.encoding != "utf-8" else "latin-1"}"'
        ) from error
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
            yield from ((number, cleaned(row)) for number, row in enumerate(rows, 1))
            return
    file.seek(0)
    yield from _lines(file)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, _decode(line)


def _decode(line: bytes) -> Any:
    try:
        return cleaned(json.loads(line.decode("utf-8-sig"), parse_constant=_refuse))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        return Broken(f"not JSON ({error})")


def _as_utf8(file: IO[bytes], encoding: str) -> IO[bytes]:
    """The file as UTF-8, with or without a byte-order mark."""
    start = file.read(4)
    file.seek(0)
    encoding = next((name for mark, name in _MARKS if start.startswith(mark)), encoding)
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        return file
    return io.BytesIO(file.read().decode(encoding).encode("utf-8", "replace"))


def _csv(file: IO[bytes], delimiter: str) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(_MAX_FIELD)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    for number, row in enumerate(csv.DictReader(text, strict=True, delimiter=delimiter), 1):
        if None in row:
            yield number, Broken("more fields than the header has names")
        else:
            yield number, {key: value or None for key, value in row.items()}


def delimiter_hint(path: str, row: Mapping[str, Any]) -> str:
    """What to try where a .csv file has one column whose name holds another delimiter."""
    if not format_name(path).endswith(".csv") or len(row) != 1:
        return ""
    (header,) = map(str, row)
    sign = next((sign for sign in ";\t|," if sign in header), None)
    return (
        "" if sign is None else f"; its one column holds {sign!r}: set [data] delimiter = {json.dumps(sign)}"
    )


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


def cleaned(value: Any) -> Any:
    """A row in which no text has lone surrogates, which no file could hold."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): cleaned(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
