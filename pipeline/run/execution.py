"""Running the stages of one store, each at most once: load what is finished, run what is not.

That is all that resume is. An iteration, an evaluation and a replay are lists of stages over a store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.metrics.alarms import Alarm
from pipeline.store import run as store
from pipeline.store.run import IterationStore, Manifest
from stages.base import Account, Context, Progress, Stage
from stages.lease import Fleet, leased
from stages.tables.parquet import TableRef
from workflows.errors import UsageError

Fingerprints = Mapping[str, Mapping[str, Any]]
ANEW = "set them back to finish it, or start anew with --new"


@dataclass(slots=True)
class Finished:
    """The finished stages of one store, as a summary needs them."""

    index: int
    tables: dict[str, TableRef] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    seconds: float = 0.0
    resumed: list[str] = field(default_factory=list)  # stages that were finished before

    @property
    def accounts(self) -> list[Account]:
        return [a for m in self.manifests.values() for a in m.accounts]

    @property
    def notes(self) -> list[str]:
        return [n for m in self.manifests.values() for n in m.notes]


def run_stages(
    stages: Sequence[Stage],
    place: IterationStore,
    fingerprints: Fingerprints,
    *,
    what: str,
    progress: Progress,
    fleet: Fleet | None = None,
    tables: Mapping[str, TableRef] | None = None,
    remedy: str = ANEW,
) -> Finished:
    """Run the stages in order over `place`; `tables` are those that are there from elsewhere.

    Args:
        fingerprints: by stage name: what its result depends on beside its inputs.
        what: names the store in messages, e.g. "iteration 3 of run 'qa'".
        remedy: what to do where finished work was made with other settings.

    Raises:
        UsageError: a finished or begun stage was made with other settings or from other tables.
    """
    check_fingerprints(stages, place, fingerprints, what, remedy)
    started = time.monotonic()
    done = Finished(place.index, tables=dict(tables or {}))
    for stage in stages:
        inputs = {t: done.tables[t] for t in stage.inputs}
        manifest = place.manifest(stage)
        if manifest is not None:
            _check_inputs(stage, manifest, inputs)
            done.resumed.append(stage.name)
        else:
            _prepare_folder(stage, place, inputs, fingerprints[stage.name], what, remedy)
            manifest = _execute(stage, place, inputs, fingerprints[stage.name], progress, fleet)
        done.manifests[stage.name] = manifest
        done.tables.update(place.refs(stage, manifest))
    done.seconds = time.monotonic() - started
    return done


def check_fingerprints(
    stages: Sequence[Stage],
    place: IterationStore,
    fingerprints: Fingerprints,
    what: str,
    remedy: str = ANEW,
) -> None:
    """Refuse to go on where a finished stage was made with other settings than those of now."""
    for stage in stages:
        manifest = place.manifest(stage)
        if manifest is None:
            continue
        now = store.plain(fingerprints[stage.name])
        if manifest.fingerprint != now:
            raise UsageError(
                f"{what} has finished its stage {stage.name!r} with other settings: "
                f"{store.differences(manifest.fingerprint, now)}; {remedy}"
            )


def _execute(
    stage: Stage,
    place: IterationStore,
    inputs: Mapping[str, TableRef],
    fingerprint: Mapping[str, Any],
    progress: Progress,
    fleet: Fleet | None,
) -> Manifest:
    started = time.monotonic()
    result = stage.run(inputs, place.sinks(stage), Context(place.index, progress, leased(stage, fleet)))
    for account in result.accounts:
        account.check()
    return place.commit(stage, result, fingerprint, inputs, time.monotonic() - started)


def _prepare_folder(
    stage: Stage,
    place: IterationStore,
    inputs: Mapping[str, TableRef],
    fingerprint: Mapping[str, Any],
    what: str,
    remedy: str,
) -> None:
    """Clear what an unfinished run of the stage left, unless the stage commits piece by piece and
    the pieces were made from the same inputs with the same settings."""
    folder = place.folder.child(stage.folder)
    mark = store.to_mark(fingerprint, inputs)
    begun = folder.read_text("begun.json")
    if begun is None or not getattr(stage, "resumable", False):
        place.clear(stage)
    elif begun != mark:
        difference = store.differences(store.from_mark(begun), store.from_mark(mark))
        raise UsageError(f"{what} has begun stage {stage.name!r} with other settings: {difference}; {remedy}")
    folder.write_text("begun.json", mark)


def _check_inputs(stage: Stage, manifest: Manifest, inputs: Mapping[str, TableRef]) -> None:
    now = store.input_hashes(inputs)
    if manifest.inputs != now:
        raise UsageError(
            f"stage {stage.name!r} was made from other tables than are there now: "
            f"{store.differences(manifest.inputs, now)}; remove {stage.folder!r} and the folders of later "
            "stages in this iteration to compute them again"
        )
