"""Updates whose checkpoint is gone, made again: with the settings that they were made with, and compared.

A trainer resumes from its newest whole checkpoint. Updates since then are made again from their stored rows;
the settings may have changed in between, and those of today hold from the next update on.

Weights that end with the hash of the published ones are those. Others are measured: threads, bfloat16 and
another processor round differently, and what is within `checkpoints.redo_tolerance` of the way that the
weights have moved since the checkpoint is taken for the same update, and said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipeline.views.output import print_lines
from stages.tables.filesystem import filesystem
from stages.training.spec import TrainerSpec
from stages.weights.distance import Distance, distance
from stages.weights.resolve import fetched
from workflows.errors import RunFailed

if TYPE_CHECKING:
    from stages.training.group import TrainerGroup


@dataclass(frozen=True, slots=True)
class Redone:
    """An update that is made again."""

    arguments: Mapping[str, Any]  # of `TrainerGroup.update`
    spec: TrainerSpec  # as it was made
    published: str | None = None  # hash of the weights that it made then
    changed_source: str | None = None  # of its loss, where that is another one today


def trainer_at(
    spec: TrainerSpec,
    start: int,
    resume: str | None,
    updates: Sequence[Redone],
    uri_of: Callable[[int], str],
    beside: TrainerGroup | None,
    tolerance: float,
) -> TrainerGroup:
    """A trainer of `spec` after `updates`, which are made again in order from version `start` on.

    Those that were made with other settings than `spec` run in trainers of their own, one after another.

    Args:
        spec: what the trainer is from then on.
        start: the version to begin with.
        resume: its checkpoint; None for the initial weights.
        updates: what took the model on from there.
        uri_of: the folder of a version; scratch folders lie beside it.
        beside: as for `TrainerGroup.start`.
        tolerance: how far from the published weights they may end, as a share of the way that they moved.

    Raises:
        RunFailed: an update can't be made again, or ends in other weights, further off than that or because
            its loss was changed.
    """
    from stages.training.group import TrainerGroup

    version, left = start, list(updates)
    origin = f"{resume}/weights" if resume is not None else None if spec.adapter else spec.checkpoint
    with _scratch() as scratch:
        for of_spec, same in groupby(updates, key=lambda update: update.spec):
            segment = list(same)
            if of_spec == spec and len(segment) == len(left):
                break  # the trainer that stays makes them itself
            group = TrainerGroup.start(of_spec, version=version, resume=resume)
            try:
                for update in segment:
                    group.update(**update.arguments)
                version = group.version
                resume = f"{uri_of(version)}-settings"
                scratch.append(resume)
                group.save(resume)
            finally:
                group.close()
            left = left[len(segment) :]
        group = TrainerGroup.start(spec, version=version, resume=resume, beside=beside)
        for update in left:
            group.update(**update.arguments)
        if updates and updates[-1].published is not None:
            scratch.append(f"{uri_of(group.version)}-redone")
            try:
                _compare(group, updates, scratch[-1], f"{uri_of(group.version)}/weights", origin, tolerance)
            except BaseException:
                group.close()
                raise
    return group


def _compare(
    group: TrainerGroup,
    updates: Sequence[Redone],
    folder: str,
    published: str,
    origin: str | None,
    tolerance: float,
) -> None:
    """Hold the weights that were made again, written to `folder`, to those that were published then."""
    now, then = group.publish(folder).hash, updates[-1].published
    if now == then:
        return
    count, model_id = len(updates), group.spec.model_id
    what = (
        f"model {model_id!r}: {count} update{'s' if count > 1 else ''} since its last checkpoint "
        f"{'were' if count > 1 else 'was'} made again"
    )
    changed = next((u.changed_source for u in updates if u.changed_source is not None), None)
    if changed is not None:
        raise RunFailed(
            f"{what}, and end in other weights ({now}, published were {then}), because the source of loss "
            f"{changed!r} has changed since; put the old source back until the next checkpoint is written"
        )
    apart = _distance(f"{folder}/weights", published, origin)
    if apart is None:
        difference = "the published ones are gone, so nothing can be measured"
    else:
        difference = f"their difference is {apart}"
    told = f"{what} with the settings of then, and not to the published weights bit for bit: {difference}"
    if apart is not None and apart.share > tolerance:
        raise RunFailed(
            f"{told}. That is more than checkpoints.redo_tolerance = {tolerance:g}, more than threads, "
            "bfloat16 or another processor explain; go on where the updates were made, with the packages of "
            "then (the manifests in `updates` have them), or raise checkpoints.redo_tolerance to go on "
            "from here"
        )
    print_lines(
        [
            f"{told}. Threads, bfloat16 and another processor round differently; the run goes on from them, "
            "and checkpoints.every = 1 makes nothing again"
        ]
    )


def _distance(folder: str, published: str, origin: str | None) -> Distance | None:
    """How far the weights in two folders are apart; None where the published ones are gone."""
    fs, path = filesystem(published)
    if not fs.exists(path):
        return None
    with contextlib.ExitStack() as stack:
        now, then = (stack.enter_context(fetched(uri)) for uri in (folder, published))
        start = None if origin is None else stack.enter_context(fetched(origin))
        return distance(now, then, start)


@contextlib.contextmanager
def _scratch() -> Iterator[list[str]]:
    """Folders that are removed at the end."""
    folders: list[str] = []
    try:
        yield folders
    finally:
        for folder in folders:
            fs, path = filesystem(folder)
            with contextlib.suppress(FileNotFoundError):
                fs.rm(path, recursive=True)
