"""What a report is of: a whole run, one iteration, or one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.evaluation import place_of
from pipeline.metrics import slug
from pipeline.store import IterationStore, Manifest, Run, tables_at
from stages.tables import TableRef
from workflows.errors import UsageError, did_you_mean

Kind = Literal["run", "iteration", "evaluation"]


@dataclass(frozen=True, slots=True)
class Place:
    """One store: an iteration, or an evaluation after `index` iterations."""

    store: IterationStore
    tables: Mapping[str, TableRef]
    manifests: Sequence[Manifest]
    finished: bool

    @property
    def index(self) -> int:
        return self.store.index


@dataclass(frozen=True, slots=True)
class Source:
    """What to read, what to call it, and the name of its file."""

    run: Run
    kind: Kind
    title: str
    file: str
    places: tuple[Place, ...]


def source_of(run: Run, iteration: int | None, split: str | None) -> Source:
    """The run, or one iteration of it; with `split` the evaluation on it, the newest by default.

    Raises:
        UsageError: there is no such iteration or evaluation; the message says what there is.
    """
    if split is not None:
        return _evaluation(run, iteration, split)
    indices = run.iterations()
    if not indices:
        raise UsageError(f"run {run.name!r} at {run.folder.url} has no iteration yet")
    if iteration is not None and iteration not in indices:
        raise UsageError(
            f"run {run.name!r} has no iteration {iteration}; it has {indices[0]} to {indices[-1]}"
        )
    places = tuple(_iteration(run, i) for i in (indices if iteration is None else [iteration]))
    if iteration is None:
        return Source(
            run, "run", f"{len(places)} iterations" if len(places) > 1 else "1 iteration", "run.html", places
        )
    return Source(run, "iteration", f"iteration {iteration}", f"iteration-{iteration:05d}.html", places)


def _iteration(run: Run, index: int) -> Place:
    tables, manifests = tables_at(run.iteration(index))
    return Place(run.iteration(index), tables, manifests, run.is_finished(index))


def _evaluation(run: Run, index: int | None, split: str) -> Source:
    folder = run.folder.child("evaluations")
    splits = folder.names()
    if slug(split) not in splits:
        raise UsageError(
            f"run {run.name!r} has no evaluation on split {split!r}{did_you_mean(split, splits)}; it has "
            f"evaluations on: {', '.join(splits) or 'none'} (`python -m pipeline run evaluate`)"
        )
    indices = [int(name) for name in folder.child(slug(split)).names() if name.isdigit()]
    if not indices or (index is not None and index not in indices):
        raise UsageError(
            f"run {run.name!r} has no evaluation on {split!r} after {index or 0} iterations; there are some "
            f"after: {', '.join(map(str, indices)) or 'none'}"
        )
    store = place_of(run, split, indices[-1] if index is None else index)
    tables, manifests = tables_at(store)
    finished = store.folder.read_text("result.json") is not None
    title = f"evaluation on {split} after {store.index} iterations"
    file = f"evaluation-{slug(split)}-{store.index:05d}.html"
    return Source(run, "evaluation", title, file, (Place(store, tables, manifests, finished),))
