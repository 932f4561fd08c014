"""Finished updates of models, read off manifests: at which version a model is, and what took it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from stages.tables.parquet import TableRef
from stages.training.trust.spec import state_recorded
from stages.update import TRUST_BEFORE, UPDATE_ARGUMENTS


def newest_version(newest_first: Iterable[IterationStore], model_id: str) -> int | None:
    """Version after the newest finished update of this model; None without one."""
    for place in newest_first:
        manifest = update_of(place, model_id)
        if manifest is not None:
            return int(manifest.metrics["version_after"])
    return None


def updates_since(
    newest_first: Iterable[IterationStore],
    model_id: str,
    version: int,
    tables_of: Callable[[IterationStore], Mapping[str, TableRef]],
) -> list[dict[str, Any]]:
    """The finished updates that took this model on from `version`, in the order in which they were made:
    the arguments of `TrainerGroup.update`, with the tables that each was made from (of `tables_of`)."""
    updates: list[dict[str, Any]] = []
    for place in newest_first:
        manifest = update_of(place, model_id)
        if manifest is None:
            continue
        before = int(manifest.metrics["version_before"])
        if before < version:
            break  # versions only grow
        if moved(manifest):
            tables = tables_of(place)
            arguments = _arguments(manifest, model_id, tables)
            updates.append({**arguments, "version": before, "at": (place.index, place.block)})
    return updates[::-1]


def _arguments(manifest: Manifest, model_id: str, tables: Mapping[str, TableRef]) -> dict[str, Any]:
    """What an update was made from; of a trust region, what was decided then."""
    arguments: dict[str, Any] = {}
    for name in manifest.inputs:
        kind = name.partition("/")[0]
        if kind == TRUST_BEFORE:
            arguments["trust"] = state_recorded(tables[f"trust/{model_id}"].read().to_pylist())
        else:
            arguments[UPDATE_ARGUMENTS[kind]] = tables[name]
    return arguments


def update_of(place: IterationStore, model_id: str) -> Manifest | None:
    """The manifest of this model's update, once it is finished."""
    return place.manifest_at(f"updates/{model_id}")


def made_with(place: IterationStore, model_id: str) -> tuple[Mapping[str, Any], str | None]:
    """The fingerprint of this model's finished update, and the hash of the weights that it made."""
    manifest = update_of(place, model_id)
    assert manifest is not None, "the update is finished"
    table = place.tables()[0].get(f"models/{model_id}")
    hashes = table.read(["hash"])["hash"].to_pylist() if table is not None else []
    return manifest.fingerprint, hashes[0] if hashes else None


def moved(manifest: Manifest) -> bool:
    """Whether an update made a new version: one without signal does not, nor does a rejected one."""
    return manifest.metrics["version_after"] > manifest.metrics["version_before"]


def are_silent(newest_first: Iterable[IterationStore], models: Collection[str], count: int) -> bool:
    """Whether the newest `count` iterations, if there are so many, had nothing to move weights of any of the
    models by, in any of their blocks. A rejected update had something.

    Args:
        newest_first: the first block of each iteration.
    """
    newest = list(islice(newest_first, count))
    places = (place for iteration in newest for place in iteration.blocks())
    manifests = (update_of(place, model_id) for place in places for model_id in models)
    return len(newest) == count and not any(
        manifest and (moved(manifest) or manifest.metrics.get("rejected")) for manifest in manifests
    )


def prune_checkpoints(run: Run, model_id: str, keep: int, also: Collection[int | None]) -> None:
    """Keep the newest whole checkpoints of a model, and the versions of `also`; remove its others."""
    kept = {*run.checkpoint_versions(model_id)[-keep:], *also}
    for version in set(run.checkpoint_folders(model_id)) - kept:
        run.folder.remove(f"checkpoints/{model_id}/{version:05d}")
