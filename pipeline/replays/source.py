"""The source of a replay: the stored iterations of a run, or its evaluations on one split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.settings.names import slug
from pipeline.store.finished import Finished, by_key, joined, united
from pipeline.store.manifest import check_part, input_hashes
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from pipeline.store.spans import within
from stages.base import written_as
from stages.tables.parquet import TableRef
from workflows.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Source:
    """A run's iterations, or with `split` its evaluations on that split; only read, never written to."""

    run: Run
    split: str | None = None

    def place(self, index: int) -> IterationStore:
        """The first block of an iteration, or an evaluation."""
        if self.split is None:
            return self.run.iteration(index)
        return self.run.evaluation(self.split, index)

    def blocks(self, index: int) -> list[Finished]:
        """What is stored of each block of an iteration whose rollout is finished, in order.

        A block that trains on plays of earlier blocks has their tables, too (`Finished.shared`).
        """
        blocks: dict[int, Finished] = {}
        for place in self.place(index).blocks():
            tables, manifests = place.tables()
            shared = {table: numbers for m in manifests for table, numbers in m.shared.items()}
            if not manifests or not ("turns" in tables or shared):
                continue
            for table, numbers in shared.items():
                tables[table] = united([blocks[number].tables[written_as(table)] for number in numbers])
            blocks[place.block] = Finished(place, tables, by_key(manifests))
        return list(blocks.values())

    def stored(self, index: int) -> Finished:
        """What is stored of an iteration, all its blocks together."""
        return joined(self.blocks(index))

    def indices(self) -> list[int]:
        """The iterations whose rollout is finished, in order."""
        return [i for i in self._all() if self.place(i).manifest_at("rollout") is not None]

    def chosen(self, span: str | None) -> list[int]:
        """The indices of `span`, "A:B" without B as in Python, or all; either end may be left out.

        Raises:
            UsageError: not such a text, or none there whose rollout is finished.
        """
        what = "iteration" if self.split is None else f"evaluation on {self.split!r}"
        have = self.indices()
        wanted = [i for i in have if within(i, span)]
        if not wanted:
            asked = f" in {span}" if span else ""
            raise UsageError(
                f"run {self.run.name!r} has no {what} with a finished rollout{asked}; "
                f"it has {', '.join(map(str, have)) or 'none'}"
            )
        return wanted

    def unfinished(self, span: str | None) -> list[int]:
        """The iterations of the span that can't be replayed, because their rollout is unfinished."""
        have = self.indices()
        return [i for i in self._all() if within(i, span) and i not in have]

    def _all(self) -> list[int]:
        if self.split is None:
            return self.run.iterations()
        splits = self.run.folder.child("evaluations").names()
        if slug(self.split) not in splits:
            raise UsageError(
                f"run {self.run.name!r} has no evaluation on {self.split!r}"
                f"{did_you_mean(self.split, splits)}; it has some on: {', '.join(splits) or 'nothing'}"
            )
        names = self.run.folder.child(f"evaluations/{slug(self.split)}").names()
        return sorted(int(n) for n in names if n.isdigit())


def check_tables(tables: Mapping[str, TableRef]) -> None:
    """Refuse tables with files that are gone or have another size than their manifest says.

    Raises:
        CadreError: naming the first such file.
    """
    for table in tables.values():
        for part in table.parts:
            check_part(f"{table.folder}/{part.name}", part)


def where_from(tables: Mapping[str, TableRef]) -> dict[str, dict[str, object]]:
    """Where tables lie and what was in them: for the record beside what was made from them."""
    hashes = input_hashes(tables)
    return {
        name: {"folder": table.folder, "rows": table.rows, "hash": hashes[name]}
        for name, table in sorted(tables.items())
    }
