"""Updates whose checkpoint is gone, made again: with the settings that they were made with, and compared.

A trainer resumes from its newest whole checkpoint. Updates since then are made again from their stored rows;
the settings may have changed in between, and those of today hold from the next update on.
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

    Raises:
        RunFailed: an update can't be made again, or ends in other weights because its loss was changed.
    """
    from stages.training.group import TrainerGroup

    version, left = start, list(updates)
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
            _compare(group, updates, scratch[-1])
    return group


def _compare(group: TrainerGroup, updates: Sequence[Redone], folder: str) -> None:
    """Hold the weights that were made again to those that were published then."""
    now, then = group.publish(folder).hash, updates[-1].published
    if now == then:
        return
    count, model_id = len(updates), group.spec.model_id
    changed = next((u.changed_source for u in updates if u.changed_source is not None), None)
    if changed is not None:
        group.close()
        raise RunFailed(
            f"model {model_id!r}: {count} updates since its last checkpoint were made again and end in other "
            f"weights ({now}, published were {then}), because the source of loss {changed!r} has changed "
            "since; put the old source back until the next checkpoint is written"
        )
    print_lines(
        [
            f"model {model_id!r}: {count} updates since its last checkpoint were made again with their own "
            f"settings, and do not end in the published weights bit for bit ({now}, published {then}): "
            "several threads, bfloat16 or another processor round differently. How far the trainer is from "
            "the sampler is measured by the next update (sampler_gap_mean)"
        ]
    )


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
