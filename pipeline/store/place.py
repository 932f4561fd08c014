"""The tables of one block of an iteration, of an evaluation or of a replay.

    iterations/00000/<stage folder>/…parts… manifest.json
    iterations/00000/blocks/01/<stage folder>/…              of a second block, and so on

A stage whose manifest is there is finished and is never run again; a folder without one is unfinished work,
cleared before the stage runs again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.store.folder import Folder
from pipeline.store.manifest import Manifest, check_part, input_hashes, package_versions
from stages.base import Stage, StageResult
from stages.players.shards import SHARDS
from stages.tables.parquet import Part, TableRef, TableSink
from workflows.trajectory import schema_of

BLOCKS: Final = "blocks"
ROLLOUT: Final = "rollout"  # the folder of the stage of that name
PLAYED: Final = ("turns", "episodes")  # its tables, each in a folder of its name


@dataclass(frozen=True, slots=True)
class IterationStore:
    """The tables of one block of an iteration; `block` counts from 0."""

    folder: Folder
    index: int
    block: int = 0

    def blocks(self) -> list[IterationStore]:
        """All blocks that there is anything of, in order, this one being the first."""
        assert self.block == 0, "blocks are counted from the first"
        numbers = sorted(int(name) for name in self.folder.child(BLOCKS).names() if name.isdigit())
        return [self, *(self.at(number) for number in numbers)]

    def at(self, block: int) -> IterationStore:
        """The block of this number, whether there is anything of it or not."""
        assert self.block == 0, "blocks are counted from the first"
        if block == 0:
            return self
        return IterationStore(self.folder.child(f"{BLOCKS}/{block:02d}"), self.index, block)

    def manifests(self) -> list[Manifest]:
        """Those of the stages that are finished in this block, each after those whose tables it reads."""
        names = self.folder.files("manifest.json", but=BLOCKS)
        manifests = [m for name in names if (m := self.manifest_at(name.rpartition("/")[0])) is not None]
        return in_order(manifests)

    def tables(self) -> tuple[dict[str, TableRef], list[Manifest]]:
        """The tables of the finished stages of this block by name, and the manifests in stage order."""
        tables: dict[str, TableRef] = {}
        manifests = self.manifests()
        for manifest in manifests:
            for table, parts in manifest.tables.items():
                place = "/".join(p for p in (self.folder.url, manifest.folder, manifest.places[table]) if p)
                tables[table] = TableRef(
                    table, place, schema_of(table), tuple(parts), manifest.schema_version
                )
        return tables, manifests

    def begun_tables(self) -> dict[str, TableRef]:
        """The plays of an unfinished rollout, as far as its shards are committed, with their tasks part by
        part; {} where there are none."""
        folder = self.folder.child(ROLLOUT)
        if folder.read_text("manifest.json") is not None:
            return {}
        texts = [
            folder.read_text(f"{SHARDS}/{n}") for n in folder.child(SHARDS).names() if n.endswith(".json")
        ]
        receipts = [json.loads(text) for text in texts if text is not None]
        if not receipts:
            return {}
        plays = {
            table: TableRef(
                table,
                f"{folder.url}/{table}",
                schema_of(table),
                tuple(Part(**receipt["parts"][table]) for receipt in receipts),
            )
            for table in PLAYED
        }
        tasks = self.tables()[0].get("tasks")
        if tasks is not None:
            plays["tasks"] = replace(
                tasks, parts=tuple(tasks.parts[receipt["index"]] for receipt in receipts)
            )
        return plays

    def manifest(self, stage: Stage) -> Manifest | None:
        return self.manifest_at(stage.folder)

    def manifest_at(self, stage_folder: str) -> Manifest | None:
        name = f"{stage_folder}/manifest.json"
        text = self.folder.read_text(name)
        if text is None:
            return None
        manifest = Manifest.from_json(text, f"{self.folder.url}/{name}")
        manifest.folder = stage_folder
        return manifest

    def sinks(self, stage: Stage) -> dict[str, TableSink]:
        return {t: TableSink(t, self._place(stage, t), schema) for t, schema in stage.outputs.items()}

    def refs(self, stage: Stage, manifest: Manifest) -> dict[str, TableRef]:
        """The tables of a finished stage, checked to be all there; without those that it did not write
        when it was made (`pipeline.run.lacking`).

        Raises:
            CadreError: a file that the manifest lists is gone or has another size.
        """
        refs = {}
        for table, schema in stage.outputs.items():
            if table not in manifest.tables:
                continue
            place = self._place(stage, table)
            for part in manifest.tables[table]:
                check_part(f"{place}/{part.name}", part)
            parts = tuple(manifest.tables[table])
            refs[table] = TableRef(table, place, schema, parts, manifest.schema_version)
        return refs

    def commit(
        self,
        stage: Stage,
        result: StageResult,
        fingerprint: Mapping[str, Any],
        inputs: Mapping[str, TableRef],
        seconds: float,
        shared: Mapping[str, Sequence[int]] | None = None,
    ) -> Manifest:
        manifest = Manifest(
            stage=stage.name,
            iteration=self.index,
            block=self.block,
            fingerprint=dict(fingerprint),
            inputs=input_hashes(inputs),
            tables=result.parts,
            places=dict(stage.places),
            accounts=result.accounts,
            metrics=result.metrics,
            notes=result.notes,
            seconds=seconds,
            finished_at=time.time(),
            packages=dict(package_versions()),
            folder=stage.folder,
            shared={table: list(blocks) for table, blocks in (shared or {}).items() if table in inputs},
        )
        self.folder.write_text(f"{stage.folder}/manifest.json", manifest.to_json())
        return manifest

    def clear(self, stage: Stage, keep: frozenset[str] = frozenset()) -> None:
        """Remove what an unfinished run of the stage left, but for the names in `keep`."""
        folder = self.folder.child(stage.folder)
        for name in folder.names():
            if name not in keep:
                folder.remove(name)

    def _place(self, stage: Stage, table: str) -> str:
        place = stage.places[table]
        return f"{self.folder.url}/{stage.folder}" + (f"/{place}" if place else "")


def in_order(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Manifests of one block, each after those whose tables it reads; else by when they were written."""
    waiting = sorted(manifests, key=lambda m: (m.finished_at, m.stage))
    ordered: list[Manifest] = []
    while waiting:
        unwritten = {table for m in waiting for table in m.tables}
        free = [m for m in waiting if not unwritten & (m.inputs.keys() - m.tables.keys())]
        ordered.append((free or waiting)[0])  # a table that is carried over may have a writer's name
        waiting.remove(ordered[-1])
    return ordered
