"""Four workflows × three sharing regimes × three seeds, with controls: docs/examples/studies/clues.toml.

Reached where training has told from noise what it did for every workflow under full sharing: the gain of its
best checkpoint over the untrained team. What the study says of teams against their controls is its result,
not its goal. With `--keep` a second call goes on where the first was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pipeline.experiments.study.course import planned, run_study
from pipeline.experiments.study.results import UNTRAINED, StudyResult, results_of
from pipeline.experiments.study.spec import Study, read_study
from tests.learning.train import EXAMPLES

FILE: Final = EXAMPLES / "studies" / "clues.toml"


@dataclass(frozen=True, slots=True)
class Studied:
    """A finished study."""

    result: StudyResult

    @property
    def reached(self) -> bool:
        learned = {
            c.what for c in self.result.claims if c.than == UNTRAINED and c.when == "best" and c.is_told
        }
        full = [cell.label for cell in self.result.study.cells if cell.regime == "full"]
        return bool(full) and set(full) <= learned

    def as_dict(self) -> dict[str, Any]:
        return {**self.result.as_dict(), "reached": self.reached}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Studied]:
    """Train every cell, or those whose name has `only`, and write the study's page."""
    study = study_in(folder, FILE, seeds, only)
    run_study(study)
    studied = Studied(results_of(study))
    print(f"  every workflow learns under full sharing   {'reached' if studied.reached else 'short'}")
    return [studied]


def study_in(folder: str, file: Path, seeds: Sequence[int], only: str = "") -> Study:
    """The study of a file with its runs under `folder`."""
    study = read_study(str(file), [f'run.root="{folder}"', f"study.seeds={list(seeds)}"])
    cells = tuple(cell for cell in study.cells if only in cell.label)
    points = tuple(cell.point for cell in cells)
    members = tuple(member for member in study.sweep.members if member.point in points)
    return planned(replace(study, cells=cells, sweep=replace(study.sweep, points=points, members=members)))
