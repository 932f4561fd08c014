"""Where the tables of imported traces lie: in the folders of the stages that write them elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipeline.store.place import IterationStore
from stages.base import StageResult
from stages.lease import Lease
from stages.tables.parquet import TableRef
from workflows.trajectory import schema_of


@dataclass(frozen=True, slots=True)
class Made:
    """A stage whose tables were made by an import: as much of it as its manifest says."""

    name: str
    folder: str
    tables: tuple[tuple[str, str], ...]  # each with its folder within that of the stage
    reads: tuple[str, ...] = ()
    lease: Lease = "none"

    @property
    def places(self) -> dict[str, str]:
        return dict(self.tables)

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {table: schema_of(table) for table in self.reads}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {table: schema_of(table) for table in self.places}

    def run(self, *_: Any) -> StageResult:
        raise NotImplementedError("an import has made these tables already")

    def folder_of(self, place: IterationStore, table: str) -> str:
        return "/".join(p for p in (place.folder.url, self.folder, self.places[table]) if p)


_STAGES: Final = (
    Made("sample", "tasks", (("tasks", ""),)),
    Made(
        "rollout", "rollout", (("turns", "turns"), ("episodes", "episodes"), ("traced", "traced")), ("tasks",)
    ),
    Made("reward", "rewards", (("rewards", ""),), ("tasks", "turns", "episodes")),
    Made("credit", "credit", (("credit", ""),), ("turns", "episodes", "rewards")),
    Made("evaluate", "evaluation", (("evaluation", ""),), ("tasks", "turns", "episodes")),
)
MADE: Final[Mapping[str, Made]] = {table: made for made in _STAGES for table, _ in made.tables}
NEEDED: Final = frozenset(("tasks", "turns", "episodes"))  # written although no row is in them


def commit(place: IterationStore, results: Mapping[Made, StageResult], imported: Mapping[str, Any]) -> None:
    """Write the manifests of the stages in their order, then the mark that the iteration is whole."""
    there: dict[str, TableRef] = {}
    for made in _STAGES:
        if made not in results:
            continue
        result = results[made]
        inputs = {table: there[table] for table in made.reads if table in there}
        for account in result.accounts:
            account.check()
        place.commit(made, result, {"imported": dict(imported)}, inputs, 0.0)
        for table, parts in result.parts.items():
            folder = made.folder_of(place, table)
            there[table] = TableRef(table, folder, schema_of(table), tuple(parts))
    place.folder.write_text("done.json", "{}")
