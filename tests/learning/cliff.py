"""Do parallel copies of a role fall off a cliff? Eight voters on a prompt, high learning rate, long enough.

Peers see isolated roles with parallel copies reach a high peak and then lose it (arXiv:2605.24202): gradients
of copies add up in one direction. Here a run has *fallen* where its last score on the test split is below
nine tenths of the best that it had there. The proof says under which regimes it does, reproduced or refuted.
With `--keep` a second call goes on where the first was stopped; `cliff.toml` has the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pipeline.experiments.study.course import run_study
from pipeline.experiments.study.results import results_of
from tests.learning.study import study_in

FILE: Final = Path(__file__).parent / "cliff.toml"
KEPT: Final = 0.9  # a run that ends with a smaller share of its peak has fallen


@dataclass(frozen=True, slots=True)
class Course:
    """One run: its test scores by finished iterations."""

    label: str
    seed: int
    scores: dict[int, float]

    @property
    def peak(self) -> int:
        """After how many iterations the score was highest; of equals the first."""
        return max(self.scores, key=lambda at: (self.scores[at], -at))

    @property
    def has_fallen(self) -> bool:
        return self.scores[max(self.scores)] < KEPT * self.scores[self.peak]

    @property
    def reached(self) -> bool:
        """Whether the run says anything: it has learned at all before its end."""
        return self.peak > 0 and len(self.scores) > 2

    def line(self) -> str:
        last = max(self.scores)
        return (
            f"  {self.label:<20} seed {self.seed}: {self.scores[0]:.3f} → {self.scores[self.peak]:.3f} after "
            f"{self.peak} → {self.scores[last]:.3f} after {last}   {'fell' if self.has_fallen else 'stayed'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "seed": self.seed,
            "scores": self.scores,
            "fallen": self.has_fallen,
            "reached": self.reached,
        }


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Course]:
    """Train under every regime, or those whose name has `only`; a line a run, and the verdict."""
    study = study_in(folder, FILE, seeds, only)
    run_study(study)
    courses = [
        Course(label, seed, {at: fmean(one.scores(at).values()) for at in one.tested})
        for (label, seed), one in results_of(study).trained.items()
    ]
    for course in courses:
        print(course.line(), flush=True)
    fallen = sorted({course.label for course in courses if course.has_fallen})
    verdict = f"reproduced under {', '.join(fallen)}" if fallen else "refuted: no run fell"
    print(f"  the terminal cliff is {verdict}", flush=True)
    return courses
