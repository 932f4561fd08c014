"""Running the stages of one place, each at most once: load what is finished, run what is not.

That is all that resume is. A block of an iteration, an evaluation and a replay are lists of stages over a
place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.run.lacking import inputs_of, lacking, made_again
from pipeline.settings.program import again
from pipeline.store.differences import differences, from_mark, plain, to_mark, without_budgets
from pipeline.store.finished import Finished
from pipeline.store.manifest import Manifest, input_hashes
from pipeline.store.place import IterationStore
from stages.base import Context, Progress, Stage
from stages.lease import Fleet, leased
from stages.tables.parquet import TableRef
from workflows.errors import UsageError

Fingerprints = Mapping[str, Mapping[str, Any]]
ANEW: Final = (
    "set them back to finish it, make this stage and those after it again with the settings of now "
    "(`{redo}`), or start anew with --new"
)  # {redo}: the command line that does so; {stage} in a remedy is the stage's name


def run_stages(
    stages: Sequence[Stage],
    place: IterationStore,
    fingerprints: Fingerprints,
    *,
    what: str,
    progress: Progress,
    fleet: Fleet | None = None,
    tables: Mapping[str, TableRef] | None = None,
    shared: Mapping[str, Sequence[int]] | None = None,
    remedy: str = ANEW,
    notes: Mapping[str, str] | None = None,
) -> Finished:
    """Run the stages in order over `place`; `tables` are those that are there from elsewhere.

    Args:
        fingerprints: by stage name: what its result depends on beside its inputs.
        what: names the store in messages, e.g. "iteration 3 of run 'qa'".
        shared: which of `tables` earlier blocks of the iteration wrote, and which blocks, for manifests.
        remedy: what to do where finished work was made with other settings.
        notes: by stage name, what the manifest of one that is run notes beside its own notes.

    A finished stage of an older version of the code may lack a table that today's stage writes: it is made
    again where it borrows nothing, and else gone on without where nobody needs that table
    (`pipeline.run.lacking`).

    Raises:
        UsageError: a finished or begun stage was made with other settings or from other tables, or without a
            table that is needed.
    """
    check_fingerprints(stages, place, fingerprints, what, remedy)
    started = time.monotonic()
    known = dict(tables or {})
    manifests: dict[str, Manifest] = {}
    resumed: list[str] = []
    for stage in stages:
        inputs = inputs_of(stage, known, stages, what, remedy)
        manifest, note = place.manifest(stage), (notes or {}).get(stage.name)
        if manifest is not None:
            _check_inputs(stage, manifest, inputs, remedy)
        if manifest is not None and stage.lease == "none" and (tables_lacking := lacking(stage, manifest)):
            manifest, note = None, made_again(tables_lacking)
        if manifest is not None:
            resumed.append(manifest.key)
        else:
            _prepare_folder(stage, place, inputs, fingerprints[stage.name], what, remedy)
            manifest = _execute(stage, place, inputs, fingerprints[stage.name], progress, fleet, shared, note)
        manifests[manifest.key] = manifest
        known |= place.refs(stage, manifest)
    return Finished(place, known, manifests, seconds=time.monotonic() - started, resumed=tuple(resumed))


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
        before, now = (without_budgets(plain(f)) for f in (manifest.fingerprint, fingerprints[stage.name]))
        if before != now:
            raise UsageError(
                f"{what} has finished its stage {stage.name!r} with other settings: "
                f"{differences(before, now)}; {_remedy(remedy, stage)}"
            )


def _execute(
    stage: Stage,
    place: IterationStore,
    inputs: Mapping[str, TableRef],
    fingerprint: Mapping[str, Any],
    progress: Progress,
    fleet: Fleet | None,
    shared: Mapping[str, Sequence[int]] | None,
    note: str | None,
) -> Manifest:
    started = time.monotonic()
    context = Context(place.index, progress, leased(stage, fleet), place.block)
    result = stage.run(inputs, place.sinks(stage), context)
    for account in result.accounts:
        account.check()
    if note is not None:
        result.notes.append(note)
    return place.commit(stage, result, fingerprint, inputs, time.monotonic() - started, shared)


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
    mark = to_mark(fingerprint, inputs)
    begun = folder.read_text("begun.json")
    if begun is None or not getattr(stage, "resumable", False):
        place.clear(stage)
    elif (before := without_budgets(from_mark(begun))) != (now := without_budgets(from_mark(mark))):
        difference = differences(before, now)
        raise UsageError(
            f"{what} has begun stage {stage.name!r} with other settings: {difference}; "
            f"{_remedy(remedy, stage)}"
        )
    folder.write_text("begun.json", mark)


def _check_inputs(stage: Stage, manifest: Manifest, inputs: Mapping[str, TableRef], remedy: str) -> None:
    now = input_hashes(inputs)
    if manifest.inputs != now:
        raise UsageError(
            f"stage {stage.name!r} was made from other tables than are there now: "
            f"{differences(manifest.inputs, now)}; {_remedy(remedy, stage)}"
        )


def _remedy(remedy: str, stage: Stage) -> str:
    name = stage.name.partition("/")[0]
    return remedy.replace("{redo}", again(f"--redo {name}")).replace("{stage}", name)
