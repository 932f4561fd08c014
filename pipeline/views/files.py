"""The files that go to the tracker with an iteration: small, readable, and bounded in size."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from pipeline.metrics.signs import Alarm
from pipeline.store.samples import Chosen
from pipeline.views.render import accounts_table, as_text
from pipeline.views.transcript import transcript
from stages.base import Account
from stages.tables.parquet import TableRef, parquet_bytes
from workflows.trajectory import UPDATES


def iteration_files(
    tables: Mapping[str, TableRef],
    accounts: Sequence[Account],
    settings_toml: str,
    sample: Sequence[Chosen],
    page: RenderableType | None = None,
) -> dict[str, bytes]:
    """By file name: the settings, the summary `page`, the accounts of every boundary, the updates of all
    models as Parquet and CSV, what they measured of roles as CSV, and a sample of episodes as text."""
    updates = all_updates(tables)
    files = {
        "settings.toml": settings_toml.encode(),
        "rows.txt": as_text(accounts_table(accounts)).encode(),
        "updates.parquet": parquet_bytes(updates),
        "updates.csv": csv_of(updates).encode(),
    }
    for kind in ("role_updates", "role_pairs"):
        of_roles = [table.read() for name, table in tables.items() if name.partition("/")[0] == kind]
        if of_roles:
            files[f"{kind}.csv"] = csv_of(pa.concat_tables(of_roles)).encode()
    if page is not None:
        files["summary.txt"] = as_text(page).encode()
    if sample:
        pages = [Group(Rule(c.why, align="left"), transcript(c.played), Text()) for c in sample]
        files["episodes.txt"] = as_text(Group(*pages)).encode()
    return files


def note_of(page: RenderableType, alarms: Sequence[Alarm]) -> str:
    """The summary page in Markdown, its alarms first: as it is, in a fence that no name in it can close."""
    head = "Alarms: " + (", ".join(f"`{alarm.key}`" for alarm in alarms) or "none")
    return f"{head}\n\n~~~~~~text\n{as_text(page)}~~~~~~\n"


def all_updates(tables: Mapping[str, TableRef]) -> pa.Table:
    """The `updates` tables of every model as one."""
    updates = [table.read() for name, table in tables.items() if name.partition("/")[0] == "updates"]
    return pa.concat_tables([UPDATES.empty_table(), *updates])


def update_summaries(tables: Mapping[str, TableRef]) -> list[dict[str, Any]]:
    """The summary row of each model's update."""
    return [row for row in all_updates(tables).to_pylist() if row["kind"] == "summary"]


def csv_of(table: pa.Table) -> str:
    """A table as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, table.column_names)
    writer.writeheader()
    writer.writerows(table.to_pylist())
    return text.getvalue()
