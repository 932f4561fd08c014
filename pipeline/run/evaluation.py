"""What an evaluation found: its scores, its metrics, and the place of its tables.

An evaluation is a list of stages over `evaluations/<split>/<index>/`, where the index is the number
of finished iterations: its tables are apart from training's, and a finished one is never played again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.metrics.iteration import iteration_metrics
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.run.execution import Finished
from pipeline.settings.names import slug
from pipeline.store.folder import Folder
from pipeline.store.run import IterationStore, Run
from stages.evaluate import Score, summarise


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One finished evaluation."""

    split: str
    index: int
    scores: tuple[Score, ...]
    done: Finished
    folder: str
    best: str  # the metric that says which is better

    def as_dict(self) -> dict[str, Any]:
        """Plain values: what `result.json` holds and `--json` prints."""
        return {
            "split": self.split,
            "index": self.index,
            "scores": [
                {
                    "name": score.name,
                    **asdict(score.estimate),
                    "pass_at": {str(k): v for k, v in score.pass_at.items()},
                }
                for score in self.scores
            ],
            "episodes": self.done.manifests["evaluate"].metrics,
            "notes": self.done.notes,
        }

    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker, under `evaluate/<split>/`."""
        prefix = f"evaluate/{slug(self.split)}"
        found: dict[str, float] = {}
        for score in self.scores:
            name = f"{prefix}/{slug(score.name)}"
            found[name] = score.estimate.mean
            if score.estimate.low is not None and score.estimate.high is not None:
                found |= {f"{name}/low": score.estimate.low, f"{name}/high": score.estimate.high}
            found |= {f"{name}/pass_at_{k}": value for k, value in score.pass_at.items()}
        for name, value in self.done.metrics.items():
            if name.startswith(("role/", "rollout/")):
                found[f"{prefix}/{name}"] = value
        return found


def place_of(run: Run, split: str, index: int) -> IterationStore:
    return IterationStore(Folder(f"{run.folder.url}/evaluations/{slug(split)}/{index:05d}"), index)


def evaluated(plan: EvaluationPlan, run: Run, done: Finished) -> Evaluated:
    """The result of an evaluation whose stages are finished."""
    scores = summarise(done.tables["evaluation"].read(), plan.metrics.names, plan.solved_at)
    seconds = {name: m.seconds for name, m in done.manifests.items()}
    shown = {name: done.tables[name] for name in ("episodes", "turns")}
    done.metrics = iteration_metrics(shown, done.accounts, seconds)
    folder = place_of(run, plan.split, done.index).folder.url
    return Evaluated(plan.split, done.index, tuple(scores), done, folder, plan.best)
