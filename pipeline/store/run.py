"""A run on disk: tables with a manifest each, written last; readers read only what it lists.

    <root>/<run name>/
      run.json settings.toml lock
      checkpoints/<model_id>/<version>/
      iterations/00000/…            see `pipeline.store.place`
      evaluations/<split>/00000/…   by the number of iterations before it

The root is a folder or any fsspec URL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.settings.names import slug
from pipeline.settings.program import hint
from pipeline.store.folder import Folder
from pipeline.store.place import IterationStore
from stages.base import Stage, carried_of
from stages.tables.parquet import TableRef
from workflows.errors import UsageError
from workflows.trajectory import LASTING_TABLES, kind_of_table, schema_of


class Run:
    """One run folder, opened for writing (locked) or for reading."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.folder = Folder(root).child(name)
        self.info: dict[str, Any] = {}

    @property
    def exists(self) -> bool:
        return self.folder.read_text("run.json") is not None

    def read_info(self) -> dict[str, Any]:
        text = self.folder.read_text("run.json")
        if text is None:
            raise UsageError(f"no run at {self.folder.url}: run.json is missing; `{hint('runs')}` lists runs")
        self.info = json.loads(text)
        return self.info

    def write_info(self, **changes: Any) -> None:
        self.info.update(changes)
        self.folder.write_text("run.json", json.dumps(self.info, indent=1, sort_keys=True))

    def begins(self, model_id: str) -> int:
        """The version of a model's initial weights (of the info that was read): 0, or above where the model
        took another one's place in the run (`pipeline.replacement`)."""
        return int(self.info.get("begins", {}).get(model_id, 0))

    def iteration(self, index: int) -> IterationStore:
        """The first block of an iteration, from which the others are reached."""
        return IterationStore(self.folder.child(f"iterations/{index:05d}"), index)

    def evaluation(self, split: str, index: int) -> IterationStore:
        """The evaluation on a split after `index` iterations."""
        return IterationStore(self.folder.child(f"evaluations/{slug(split)}/{index:05d}"), index)

    def newest_first(self, before: tuple[int, int] | None = None) -> Iterator[IterationStore]:
        """Every block of every iteration, the newest first; with `before`, those before that iteration and
        block."""
        for index in reversed(self.iterations()):
            if before is not None and index > before[0]:
                continue
            for place in reversed(self.iteration(index).blocks()):
                if before is None or (index, place.block) < before:
                    yield place

    def iterations(self) -> list[int]:
        return sorted(int(n) for n in self.folder.child("iterations").names() if n.isdigit())

    def is_finished(self, index: int) -> bool:
        return self.iteration(index).folder.read_text("done.json") is not None

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return f"{self.folder.url}/checkpoints/{model_id}/{version:05d}"

    def checkpoint_versions(self, model_id: str) -> list[int]:
        """Versions with a whole checkpoint, which a trainer resumes from, ascending."""
        return [v for v, whole in self._checkpoints(model_id) if whole]

    def weights_versions(self, model_id: str) -> list[int]:
        """Versions whose weights an engine can load, ascending: whole checkpoints, and weights alone."""
        return [v for v, _ in self._checkpoints(model_id)]

    def checkpoint_folders(self, model_id: str) -> list[int]:
        """Versions of which there is anything, ascending: also what a kill has left half written or
        half removed."""
        return sorted(int(n) for n in self.folder.child(f"checkpoints/{model_id}").names() if n.isdigit())

    def _checkpoints(self, model_id: str) -> list[tuple[int, bool]]:
        """Each version that has a manifest, and whether the trainer's state is in it."""
        folder = self.folder.child(f"checkpoints/{model_id}")
        found = []
        for name in folder.names():
            text = folder.read_text(f"{name}/manifest.json") if name.isdigit() else None
            if text is not None:
                files = json.loads(text)["files"]
                found.append((int(name), any(f["name"].startswith("trainer/") for f in files)))
        return found


def finished_metrics(run: Run) -> dict[int, Mapping[str, float]]:
    """The metrics of every finished iteration, by its number."""
    texts = {index: run.iteration(index).folder.read_text("done.json") for index in run.iterations()}
    return {index: json.loads(text).get("metrics", {}) for index, text in texts.items() if text is not None}


def carried_tables(run: Run, place: IterationStore, stages: Sequence[Stage]) -> dict[str, TableRef]:
    """What the stages of a block read of the block before it, by input name.

    That is the newest earlier block that wrote the table, of this iteration or of the one before, or of any
    for a table that lasts (`LASTING_TABLES`); a table that none of them wrote has no parts.
    """
    sources = {name: source for stage in stages for name, source in carried_of(stage).items()}
    tables = {name: TableRef(source, "", schema_of(source), ()) for name, source in sources.items()}
    if not sources:
        return {}
    before = max((i for i in run.iterations() if i < place.index), default=place.index)
    wanted = dict(sources)
    for earlier in run.newest_first((place.index, place.block)):
        if earlier.index < before:
            wanted = {name: s for name, s in wanted.items() if kind_of_table(s) in LASTING_TABLES}
        if not wanted:
            break
        written = earlier.tables()[0]
        tables |= {name: written[source] for name, source in wanted.items() if source in written}
        wanted = {name: source for name, source in wanted.items() if source not in written}
    return tables
