"""The subject of a report: a whole run or replay, one iteration, or one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.settings.names import slug
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import replay_info, shelf_of
from pipeline.views.render import brief

Kind = Literal["run", "iteration", "evaluation"]


@dataclass(frozen=True, slots=True)
class Source:
    """The places that a report reads, its title, and where its file goes."""

    run: Run
    kind: Kind
    title: str
    file: str
    places: tuple[Finished, ...]
    changes: Mapping[str, str] | None = None  # of a replay: the settings that it changed

    @property
    def has_curve(self) -> bool:
        """Whether it is of a whole run, as that one learned."""
        return self.kind == "run" and self.changes is None


def source_of(run: Run, iteration: int | None, split: str | None, replay: str | None = None) -> Source:
    """The run, or one iteration of it; with `split` the evaluation on it, the newest by default; the same of
    what a replay made.

    Raises:
        UsageError: there is no such iteration, evaluation or replay; the message says what there is.
    """
    shelf = shelf_of(run, split=split, replay=replay)
    index = shelf.chosen(iteration)
    whose, folder, changes = "", run.folder.url, None
    if replay is not None:
        whose, folder = f"replay {replay}, ", f"{run.folder.url}/replays/{replay}"
        changes = _changes(run, replay)

    def source(kind: Kind, title: str, name: str, indices: Sequence[int]) -> Source:
        places = tuple(shelf.place(i) for i in indices)
        return Source(run, kind, whose + title, f"{folder}/report/{name}.html", places, changes)

    if shelf.split is not None:
        name = f"evaluation-{slug(shelf.split)}-{index:05d}"
        return source("evaluation", shelf.title(index), name, [index])
    if iteration is not None:
        return source("iteration", shelf.title(index), f"iteration-{index:05d}", [index])
    count = len(shelf.indices)
    return source("run", f"{count} iterations" if count > 1 else "1 iteration", "run", shelf.indices)


def _changes(run: Run, label: str) -> dict[str, str]:
    """The settings that a replay changed, in a few words each."""
    return {change["setting"]: brief(change["now"]) for change in replay_info(run, label)["changes"]}
