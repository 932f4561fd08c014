"""`--redo STAGE`: stages of the unfinished iteration are made again, with the settings of now.

For a cause that was mended: a reward or a tool with a fault, an update that ran out of memory, a row of data.
What is made again is the newest stage of that name and every stage after it; finished iterations stay as they
are. An evaluation moves no weights, so stages of a finished one can be made again too. Each time is noted in
`run.json` (`redone`) and in the manifest of the first stage of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pipeline.plan.blocks import Block
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.run.execution import check_fingerprints
from pipeline.run.recorder import MARK as TRACKED
from pipeline.settings.program import hint
from pipeline.store.differences import differences, from_mark, plain, to_mark, without_budgets
from pipeline.store.finished import RESULT, united
from pipeline.store.place import BLOCKS, IterationStore
from pipeline.store.run import Run
from pipeline.store.runs import only_rows_differ
from pipeline.store.updates import moved
from stages.base import Stage, written_as
from stages.tables.parquet import TableRef
from workflows.errors import UsageError, did_you_mean


def redo(
    run: Run,
    place: IterationStore,
    block: Block,
    name: str,
    later: Sequence[IterationStore] = (),
    split: str | None = None,
) -> str:
    """Clear the stage `name` of a block and every stage after it; what that means, in a sentence.

    Args:
        run: the run, locked.
        place: the newest block of the unfinished iteration that has such a stage.
        block: its stages and fingerprints with the settings of now.
        name: of a stage, or its first word: "score" is the first of the scores.
        later: the blocks after it, which go too.
        split: of an evaluation; None for an iteration.

    Raises:
        UsageError: no such stage, nothing of it, or an earlier stage was made with other settings too.
    """
    at = position_of(block.stages, name)
    if at is None:
        _refuse_unknown(block.stages, name)
    first = block.stages[at]
    title = f"iteration {place.index}"
    if split is not None:
        title = f"the evaluation on {split!r} after {place.index} iterations"
    what = f"{title} of run {run.name!r}"
    check_fingerprints(block.stages[:at], place, block.fingerprints, what)
    unmade = [stage.name for stage in block.stages[:at] if place.manifest(stage) is None]
    if unmade:
        raise UsageError(
            f"--redo {name}: {what} has not come to stage {first.name!r} yet, it is at {unmade[0]!r}; "
            f"leave --redo out, or make that one again: --redo {unmade[0].partition('/')[0]}"
        )
    keeps = _keeps_shards(place, first, block.fingerprints, _shared_tables(run, place, block))
    changes = _changes(place, block)
    versions = _versions(place, block.stages[at:]) + [v for p in later for v in _versions(p)]
    entry = {
        "iteration": place.index,
        "block": place.block,
        "stage": first.name,
        "at": time.time(),
        "changes": changes,
        "versions": versions,  # (model, version) of new weights, which are removed
        **({} if split is None else {"split": split}),
    }
    run.write_info(redone=[*run.info.get("redone", []), entry])
    for each in reversed(later):
        run.iteration(each.index).folder.remove(f"{BLOCKS}/{each.block:02d}")
    for model_id, version in versions:
        run.folder.remove(f"checkpoints/{model_id}/{version:05d}")
    if split is not None:  # it is not finished any more, and what the tracker has is of before
        for mark in (RESULT, TRACKED):
            place.folder.remove(mark)
    _clear(place, block.stages, at, keeps)
    said = f"stage {first.name!r} of {title} and those after it are made again"
    if getattr(first, "resumable", False):
        said += (
            "; its finished shards stay, because what they were sampled with is unchanged"
            if keeps
            else "; its finished shards are played anew, because what they were sampled with has changed"
        )
    return f"{said}; {changes}" if changes else said


def redo_evaluations(run: Run, plan: EvaluationPlan, index: int, name: str) -> list[str]:
    """`redo` of the evaluations of a plan after `index` iterations, as far as each has come; what that means,
    a sentence each.

    Raises:
        UsageError: none has such a stage, the evaluation that chooses has not come to it, or an earlier stage
            was made with other settings too.
    """
    having = [each for each in (plan, *plan.also) if position_of(each.stages, name) is not None]
    sentences = []
    for each in having or [plan]:
        place = run.evaluation(each.label, index)
        before = each.stages[: position_of(each.stages, name) or 0]
        unmade = not place.folder.names() or any(place.manifest(stage) is None for stage in before)
        if each is not plan and unmade:
            continue  # it is not due at these weights, or has not come to that stage
        sentences.append(redo(run, place, Block(0, each.stages, each.fingerprints), name, split=each.label))
    return sentences


def unfinished_blocks(run: Run, index: int) -> list[IterationStore]:
    """The blocks of the unfinished iteration `index`.

    Raises:
        UsageError: no iteration is unfinished.
    """
    if index not in run.iterations():
        raise UsageError(
            f"run {run.name!r} has no unfinished iteration, and --redo makes stages of one again; leave it "
            f"out to run the next iteration. Finished ones can be replayed: {hint('run replay')}"
        )
    return run.iteration(index).blocks()


def redone_notes(run: Run, place: IterationStore, split: str | None = None) -> dict[str, str]:
    """By stage, the note that its manifest gets, where it is made again; with `split` in an evaluation."""
    return {
        entry["stage"]: "made again by --redo" + (f": {entry['changes']}" if entry["changes"] else "")
        for entry in run.info.get("redone", [])
        if (entry["iteration"], entry["block"], entry.get("split")) == (place.index, place.block, split)
    }


def is_trusted(run: Run, place: IterationStore) -> bool:
    """Whether a finished block keeps the settings it was made with: a later block of its iteration was redone
    with other ones."""
    redone = run.info.get("redone", [])
    ours = [e for e in redone if e.get("split") is None]
    return any(e["iteration"] == place.index and e["block"] > place.block for e in ours)


def accept_rows(run: Run, identity: Mapping[str, Any]) -> None:
    """Let an unfinished iteration be sampled anew from mended rows of data (`--redo sample`).

    Raises:
        UsageError: no iteration is unfinished.
    """
    if not run.exists:
        return
    have, now = run.read_info()["identity"], plain(identity)
    if not only_rows_differ(have, now):
        return
    unfinished = [i for i in run.iterations() if not run.is_finished(i)]
    unfinished_blocks(run, unfinished[0] if unfinished else -1)
    entry = {
        "iteration": unfinished[0], "block": 0, "stage": "sample", "at": time.time(),
        "changes": differences(have, now), "versions": [],
    }  # fmt: skip
    run.write_info(identity=now, redone=[*run.info.get("redone", []), entry])


def position_of(stages: Sequence[Stage], name: str) -> int | None:
    """Where the stage `name` is among these, or the first of that kind; None where there is none."""
    names = [stage.name for stage in stages]
    for known in (names, [each.partition("/")[0] for each in names]):
        if name in known:
            return known.index(name)
    return None


def _refuse_unknown(stages: Sequence[Stage], name: str) -> NoReturn:
    names = [stage.name for stage in stages]
    choice = list(dict.fromkeys([*(each.partition("/")[0] for each in names), *names]))
    raise UsageError(
        f"--redo {name}: there is no such stage{did_you_mean(name, choice)}; the stages are: "
        f"{', '.join(choice)}"
    )


def _shared_tables(run: Run, place: IterationStore, block: Block) -> dict[str, TableRef]:
    """The tables of earlier blocks that the stages of a block read, as far as they are there."""
    of_blocks = {n: run.iteration(place.index).at(n).tables()[0] for ns in block.shared.values() for n in ns}
    return {
        name: united([of_blocks[n][written_as(name)] for n in numbers])
        for name, numbers in block.shared.items()
        if all(written_as(name) in of_blocks[n] for n in numbers)
    }


def _keeps_shards(
    place: IterationStore,
    stage: Stage,
    fingerprints: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, TableRef],
) -> bool:
    """Whether the pieces that a stage has committed were made with today's settings from today's tables."""
    begun = place.folder.child(stage.folder).read_text("begun.json")
    if begun is None or not getattr(stage, "resumable", False):
        return False
    tables = {**shared, **place.tables()[0]}
    if not stage.inputs.keys() <= tables.keys():
        return False
    inputs: dict[str, TableRef] = {name: tables[name] for name in stage.inputs}
    mark = from_mark(to_mark(fingerprints[stage.name], inputs))
    return bool(without_budgets(from_mark(begun)) == without_budgets(mark))


def _changes(place: IterationStore, block: Block) -> str:
    """In which settings the stages that there are anything of differ from those of now."""
    before: dict[str, Any] = {}
    for stage in block.stages:
        manifest = place.manifest(stage)
        begun = place.folder.child(stage.folder).read_text("begun.json")
        if manifest is not None:
            before[stage.name] = manifest.fingerprint
        elif begun is not None:
            before[stage.name] = from_mark(begun)["settings"]
    now = {name: plain(block.fingerprints[name]) for name in before}
    return differences(before, now)


def _versions(place: IterationStore, stages: Sequence[Stage] | None = None) -> list[tuple[str, int]]:
    """`(model, version)` of the weights that finished updates of a block made, or those of `stages` alone."""
    names = None if stages is None else {stage.name for stage in stages}
    updates = [m for m in place.manifests() if m.stage.startswith("update/") and moved(m)]
    return [
        (m.stage.partition("/")[2], int(m.metrics["version_after"]))
        for m in updates
        if names is None or m.stage in names
    ]


def _clear(place: IterationStore, stages: Sequence[Stage], at: int, keeps_shards: bool) -> None:
    """Remove the stages from `at` on, the last first, so that a kill leaves finished stages in a row.

    Stages that today's settings no longer have go too.
    """
    first = stages[at]
    stay = {stage.folder for stage in stages[:at]}
    folders = [stage.folder for stage in stages[at:]] + [m.folder for m in place.manifests()]
    for folder in reversed([f for f in dict.fromkeys(folders) if f not in stay and f != first.folder]):
        place.folder.remove(folder)
    place.folder.remove(f"{first.folder}/manifest.json" if keeps_shards else first.folder)
