"""Parts of tables on any filesystem that fsspec knows.

A table is a list of Parquet parts. Part `k` of every table of an iteration up to `credit` holds
the same groups, so that stages which work group by group are maps over part numbers, without a
shuffle (`docs/design.md`, S1).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.tables.filesystem import filesystem, is_local, make_parent, reached
from workflows.errors import SchemaError
from workflows.trajectory import SCHEMA_VERSION, conform
from workflows.versions import stored_columns, upgraded


@dataclass(frozen=True, slots=True)
class Part:
    """One written file: its name within the table's folder, rows, bytes and content hash."""

    name: str
    rows: int
    bytes: int
    hash: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table to read: its folder (any fsspec URL), its parts, and the schema that readers see.

    `version` is that of the schema that the files have: an older one is read as today's.
    """

    name: str
    folder: str
    schema: pa.Schema
    parts: tuple[Part, ...]
    version: int = SCHEMA_VERSION

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.parts)

    @property
    def hash(self) -> str:
        """Hash of the table's content, from those of its parts."""
        return hashlib.blake2b("".join(p.hash for p in self.parts).encode(), digest_size=16).hexdigest()

    def read_part(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        url = f"{self.folder}/{self.parts[index].name}"
        if self.version == SCHEMA_VERSION:
            return read_parquet(url, self.schema, columns)
        wanted = self.schema.names if columns is None else columns
        stored = _read(url, stored_columns(self.name, self.version, wanted))
        schema = pa.schema([self.schema.field(c) for c in wanted])
        return conform(upgraded(stored, self.name, self.version, wanted), schema)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All parts as one table: for tables that are known to be small, and for tests."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(c) for c in columns])
        return pa.concat_tables(
            [self.read_part(i, columns) for i in range(len(self.parts))] or [schema.empty_table()]
        )


@dataclass(frozen=True, slots=True)
class TableSink:
    """A table to write: its folder and schema."""

    name: str
    folder: str
    schema: pa.Schema

    def write_part(self, index: int, table: pa.Table, again: int = 0) -> Part:
        """Write one part and return what a manifest says of it.

        It replaces the part of the same number, unless it is written `again`: then both are there until
        the older one is removed, so that a kill in between loses nothing.
        """
        name = f"part-{index:05d}-{again}.parquet" if again else f"part-{index:05d}.parquet"
        data = parquet_bytes(conform(table, self.schema))
        write_bytes(f"{self.folder}/{name}", data)
        return Part(name, table.num_rows, len(data), hashlib.blake2b(data, digest_size=16).hexdigest())

    def ref(self, parts: Sequence[Part]) -> TableRef:
        return TableRef(self.name, self.folder, self.schema, tuple(parts))


def aligned_parts(tables: Mapping[str, TableRef]) -> range:
    """The part numbers that these tables share.

    Raises:
        SchemaError: the tables have different numbers of parts, and so no groups in common places.
    """
    counts = {name: len(table.parts) for name, table in tables.items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(
            f"tables whose parts should hold the same groups have different numbers of parts: {counts}"
        )
    return range(max(counts.values(), default=0))


def parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def read_parquet(url: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    table = _read(url, columns)
    if columns is not None:
        schema = pa.schema([schema.field(c) for c in columns])
    return conform(table, schema)


def _read(url: str, columns: Sequence[str] | None) -> pa.Table:
    fs, path = filesystem(url)
    with reached(fs, url), fs.open(path, "rb") as file:
        # in this thread alone: one of Arrow's own that lets go of the file after Python has ended aborts it
        source = pq.ParquetFile(file, pre_buffer=False)
        return source.read(list(columns) if columns is not None else None, use_threads=False)


def write_bytes(url: str, data: bytes) -> None:
    """Write a whole file so that no reader sees half of it: by rename where the filesystem has one."""
    fs, path = filesystem(url)
    with reached(fs, url):
        make_parent(fs, path)
        if is_local(fs):
            temporary = f"{path}.tmp"
            with open(temporary, "wb") as file:
                file.write(data)
            fs.mv(temporary, path)
        else:
            fs.pipe_file(path, data)
