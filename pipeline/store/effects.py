"""What counterfactual plays say of stored turns: the run's own, and `run replay --counterfactual`'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.finished import Finished
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from stages.tables.parquet import TableRef

Row = dict[str, Any]
TABLE = "interventions"
_COLUMNS = (
    *("episode_id", "turn_index", "op", "alternative", "recipient", "delivered", "skipped", "status"),
    *("return", "base_return", "effect", "first_difference"),
)


def effects_of(run: Run, place: Finished, ids: frozenset[str]) -> dict[tuple[str, int], list[Row]]:
    """By turn, what was done to its reply and what came of it, of these episodes. Plays of an evaluation
    have none."""
    found: dict[tuple[str, int], list[Row]] = {}
    for label, table in _tables(run, place):
        for index in range(len(table.parts)):
            rows = table.read_part(index, _COLUMNS)
            rows = rows.filter(pc.is_in(rows["episode_id"], pa.array(sorted(ids), pa.string())))
            for row in rows.to_pylist():
                if row["turn_index"] is None:  # a replay of the whole episode as it is
                    continue
                key = (row["episode_id"], row["turn_index"])
                found.setdefault(key, []).append({"label": label, **row})
    return found


def _tables(run: Run, place: Finished) -> Iterator[tuple[str | None, TableRef]]:
    if TABLE in place.tables:
        yield None, place.tables[TABLE]
    if place.store.folder.url != run.iteration(place.index).folder.url:
        return  # a replay has the run's turns; an evaluation has its own
    folder = run.folder.child("counterfactuals")
    for label in folder.names():
        first = IterationStore(folder.child(f"{label}/{place.index:05d}"), place.index)
        for block in first.blocks():
            tables, _ = block.tables()
            if TABLE in tables:
                yield label, tables[TABLE]
