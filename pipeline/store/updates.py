"""Finished updates of models, read off manifests: at which version a model is, and what took it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from pipeline.store.run import IterationStore, Manifest, Run
from stages.tables.parquet import TableRef
from stages.update import UPDATE_ARGUMENTS


def newest_version(newest_first: Iterable[IterationStore], model_id: str) -> int | None:
    """Version after the newest finished update of this model; None without one."""
    for place in newest_first:
        manifest = update_of(place, model_id)
        if manifest is not None:
            return int(manifest.metrics["version_after"])
    return None


def updates_since(
    places: Iterable[IterationStore],
    model_id: str,
    version: int,
    tables_of: Callable[[int], Mapping[str, TableRef]],
) -> list[tuple[int, dict[str, Any]]]:
    """The finished updates that took this model on from `version`, in order: each one's iteration and the
    tables that it was made from (of `tables_of`), by the arguments of `TrainerGroup.update`."""
    found: list[tuple[int, dict[str, Any]]] = []
    for place in places:
        manifest = update_of(place, model_id)
        if manifest is None or manifest.metrics["version_before"] < version or not moved(manifest):
            continue
        tables = tables_of(place.index)
        arguments = {UPDATE_ARGUMENTS[t.partition("/")[0]]: tables[t] for t in manifest.inputs}
        found.append((place.index, arguments))
    return found


def update_of(place: IterationStore, model_id: str) -> Manifest | None:
    """The manifest of this model's update, once it is finished."""
    return place.manifest_at(f"updates/{model_id}")


def moved(manifest: Manifest) -> bool:
    """Whether an update made a new version: one without signal does not."""
    return manifest.metrics["version_after"] > manifest.metrics["version_before"]


def are_silent(newest_first: Iterable[IterationStore], models: Collection[str], count: int) -> bool:
    """Whether the newest `count` iterations, if there are so many, moved no weights of any of the models."""
    newest = list(islice(newest_first, count))
    manifests = (update_of(place, model_id) for place in newest for model_id in models)
    return len(newest) == count and not any(manifest and moved(manifest) for manifest in manifests)


def prune_checkpoints(run: Run, model_id: str, keep: int, also: Collection[int | None]) -> None:
    """Keep the newest whole checkpoints of a model, and the versions of `also`; remove its others."""
    kept = {*run.checkpoint_versions(model_id)[-keep:], *also}
    for version in set(run.checkpoint_folders(model_id)) - kept:
        run.folder.remove(f"checkpoints/{model_id}/{version:05d}")
