"""What people look at: the iterations of a run, its evaluations on a split, or a replay of either."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pipeline.settings.names import slug
from pipeline.settings.program import hint
from pipeline.store.finished import MARK, RESULT, Finished, by_key, joined
from pipeline.store.folder import Folder
from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from stages.tables.parquet import TableRef
from workflows.errors import UsageError, did_you_mean

DEFAULT_ROOT: Final = "runs"  # where a bare name is looked for
Kind = Literal["iteration", "evaluation"]


@dataclass(frozen=True, slots=True)
class Shelf:
    """Iterations, or evaluations by the number of iterations before them."""

    run: Run
    indices: tuple[int, ...]
    split: str | None = None  # of evaluations
    replay: str | None = None  # its label

    @property
    def kind(self) -> Kind:
        return "iteration" if self.split is None else "evaluation"

    @property
    def name(self) -> str:
        """Whose they are."""
        return self.run.name + (f", replay {self.replay}" if self.replay else "")

    def title(self, index: int) -> str:
        """One of them, without its run."""
        if self.split is None:
            return f"iteration {index}"
        return f"evaluation on {self.split} after {index} iterations"

    def chosen(self, index: int | None) -> int:
        """The one that is asked for, or the newest.

        Raises:
            UsageError: there is no such one, or none at all.
        """
        if not self.indices:
            raise UsageError(f"run {self.name!r} at {self.run.folder.url} has no {self.kind} yet")
        if index is None:
            return self.newest()
        if index not in self.indices:
            there = f"{self.indices[0]} to {self.indices[-1]}"
            if self.split is not None:
                raise UsageError(
                    f"run {self.name!r} has no evaluation on {self.split!r} after {index} iterations; there "
                    f"are some after: {', '.join(map(str, self.indices))}"
                )
            raise UsageError(f"run {self.name!r} has no iteration {index}; it has {there}")
        return index

    def newest(self) -> int:
        """The newest one that is finished; the newest at all where none is."""
        return next((i for i in reversed(self.indices) if self.is_finished(i)), self.indices[-1])

    def is_finished(self, index: int) -> bool:
        """Whether nothing of it is left to do."""
        if self.replay is not None:
            return self.place(index).whole
        if self.split is None:
            return self.run.is_finished(index)
        return self.run.evaluation(self.split, index).folder.read_text(RESULT) is not None

    def command(self, *options: str) -> str:
        """The command line that shows something of this: `options` are further ones of `show`."""
        home = Folder(DEFAULT_ROOT).child(self.run.name).url
        words = ["show", self.run.name if self.run.folder.url == home else self.run.folder.url]
        words += ["--replay", self.replay] if self.replay is not None else []
        words += ["--split", self.split] if self.split is not None and self.replay is None else []
        return hint(shlex.join([*words, *options]))

    def place(self, index: int) -> Finished:
        """One of `indices`, all its blocks. What a replay did not make anew, is its run's."""
        if self.split is None:
            of_run = self.run.iteration(index)
        else:
            of_run = self.run.evaluation(self.split, index)
        if self.replay is None:
            return Finished.read(of_run, MARK if self.split is None else RESULT, begun=True)
        replayed = IterationStore(self.run.folder.child(f"replays/{self.replay}/{index:05d}"), index)
        blocks = [_laid_over(replayed.at(place.block), place) for place in of_run.blocks()]
        noted = index in replay_info(self.run, self.replay)["iterations"]
        whole = noted or replayed.folder.read_text(RESULT) is not None
        return replace(joined(blocks), whole=whole)


def _laid_over(replayed: IterationStore, of_run: IterationStore) -> Finished:
    """One block of a replay: its tables over those of the run."""
    tables, manifests = of_run.tables()
    anew, of_replay = replayed.tables()
    tables, kept = laid_over(tables, manifests, anew)
    return Finished(replayed, tables, by_key([*kept, *of_replay]), inherited=frozenset(m.key for m in kept))


def shelf_of(run: Run, *, split: str | None = None, replay: str | None = None) -> Shelf:
    """The iterations of a run; with `split` its evaluations on it; with `replay` what that one made.

    Raises:
        UsageError: the run has no such evaluation or replay; the message says what there is.
    """
    if replay is not None:
        info = replay_info(run, replay)
        own_split = info["source"]["split"]
        if split not in (None, own_split):
            what = "of iterations" if own_split is None else f"of evaluations on {own_split!r}"
            raise UsageError(f"replay {replay!r} is {what}; leave out --split")
        return Shelf(run, _numbers(run.folder.child(f"replays/{replay}").names()), own_split, replay)
    if split is None:
        return Shelf(run, tuple(run.iterations()))
    splits = run.folder.child("evaluations").names()
    if slug(split) not in splits:
        raise UsageError(
            f"run {run.name!r} has no evaluation on split {split!r}{did_you_mean(split, splits)}; it has "
            f"evaluations on: {', '.join(splits) or 'none'} (`{hint('run evaluate')}`)"
        )
    return Shelf(run, _numbers(run.folder.child(f"evaluations/{slug(split)}").names()), split)


def newer_unfinished(shelf: Shelf, index: int) -> str | None:
    """That there is a newer one which is unfinished, and how to see what there is of it; None where not."""
    newest = shelf.indices[-1]
    if newest <= index or shelf.is_finished(newest):
        return None
    command = shelf.command("--iteration", str(newest))
    return f"{shelf.title(newest)} has begun and is unfinished; what there is of it: {command}"


def replay_labels(run: Run) -> list[str]:
    """The replays of a run; those of an ablation are `<ablation>/<variant>`."""
    folder = run.folder.child("replays")
    found = []
    for name in folder.names():
        if folder.read_text(f"{name}/replay.json") is not None:
            found.append(name)
        elif folder.read_text(f"{name}/ablation.json") is not None:
            variants = [f"{name}/{variant}" for variant in folder.child(name).names()]
            found += [v for v in variants if folder.read_text(f"{v}/replay.json") is not None]
    return found


def replay_run(run: Run, label: str) -> Run:
    """A replay as a run of its own, for who wants its checkpoints.

    Raises:
        UsageError: there is no such replay, or it made no weights.
    """
    info = replay_info(run, label)
    found = Run(f"{run.folder.url}/replays", label)
    if not found.folder.child("checkpoints").names():
        raise UsageError(
            f"replay {label!r} of run {run.name!r} has no weights; one with --update has "
            f"(`{hint('run replay RUN --update')}`)"
        )
    found.info = {"identity": run.info["identity"], "packages": info.get("packages", {})}
    return found


def laid_over(
    tables: Mapping[str, TableRef], manifests: Sequence[Manifest], own: Mapping[str, TableRef]
) -> tuple[dict[str, TableRef], list[Manifest]]:
    """The tables of a replay over those of its run, without those of the run that were made from what the
    replay made anew; and the manifests, in the order of stages, of what is left of the run's."""
    gone = set(own)
    for manifest in manifests:
        if gone & {*manifest.inputs, *manifest.tables}:
            gone |= set(manifest.tables)
    kept = {name: table for name, table in tables.items() if name not in gone}
    return kept | dict(own), [m for m in manifests if not gone & set(m.tables)]


def replay_info(run: Run, label: str) -> dict[str, Any]:
    """What a replay's `replay.json` says: its source, what it changed, its packages and iterations.

    Raises:
        UsageError: the run has no such replay; the message says which it has.
    """
    text = run.folder.read_text(f"replays/{label}/replay.json")
    if text is None:
        labels = replay_labels(run)
        raise UsageError(
            f"run {run.name!r} has no replay {label!r}{did_you_mean(label, labels)}; it has: "
            f"{', '.join(labels) or 'none'} (`{hint('run replay RUN')}`)"
        )
    found: dict[str, Any] = json.loads(text)
    return found


def _numbers(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names if name.isdigit()))
