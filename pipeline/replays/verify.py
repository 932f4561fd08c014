"""Whether two tables hold the same rows, bit for bit."""

from __future__ import annotations

import pyarrow as pa

from stages.tables.parquet import TableRef
from workflows.versions import stored_columns


def unequal_tables(before: TableRef, after: TableRef) -> str | None:
    """The first difference between two tables, or None where they are equal.

    Files of equal bytes are not read; others are compared value by value, a part at a time, because
    another version of the Parquet writer writes the same values as other bytes. Columns that a table of
    an older schema version tells nothing of are not compared.
    """
    if len(before.parts) != len(after.parts):
        return f"it has {len(after.parts)} parts, stored are {len(before.parts)}"
    for index, (one, other) in enumerate(zip(before.parts, after.parts, strict=True)):
        if one.hash == other.hash:
            continue
        if one.rows != other.rows:
            return f"part {index} has {other.rows} rows, stored are {one.rows}"
        columns = [c for c in before.schema.names if stored_columns(before.name, before.version, [c])]
        if problem := _unequal(before.read_part(index, columns), after.read_part(index, columns)):
            return f"part {index}, {problem}"
    return None


def _unequal(before: pa.Table, after: pa.Table) -> str | None:
    for name in before.column_names:
        one, other = before[name], after[name]
        if one.equals(other):
            continue
        rows = [i for i in range(len(one)) if not one.slice(i, 1).equals(other.slice(i, 1))]
        was, now = one[rows[0]].as_py(), other[rows[0]].as_py()
        return f"column {name!r} differs in {len(rows)} rows, first {rows[0]}: {was!r:.80} → {now!r:.80}"
    return None
