"""One finished evaluation: its scores and the place that they were made in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.metrics.names import most_frequent
from pipeline.settings.names import slug
from pipeline.store.finished import Finished
from stages.evaluate import Score


def stopped_early(best: Mapping[str, Any], patience: int) -> str:
    """A sentence that says why a training ended before its last iteration, and what came of it."""
    return (
        f"stopped early: {patience} evaluation{'s' if patience > 1 else ''} in a row were no better by "
        f"{best['metric']} than {best['value']:.3f} after {best['iterations']} iterations; the run's result "
        "is that checkpoint, which `export` writes; a higher evaluate.patience goes on"
    )


def best_so_far(metric: str, value: float, index: int, before: Mapping[str, Any] | None) -> str:
    """A sentence that says which evaluation of a split is the best now.

    Args:
        metric, value, index: of the newest evaluation; `index` iterations were finished before it.
        before: the `value` and `iterations` of the best one before, where that stays the best.
    """
    if before is None:
        return f"the best so far by {metric}: {value:.3f} after {index} iterations"
    if before["iterations"] == index:
        return f"still the best by {metric}: {before['value']:.3f} after {index} iterations"
    tie = f", as good: a tie keeps the earlier one, {value:.3f} each" if before["value"] == value else ""
    return f"the best by {metric} stays {before['value']:.3f} after {before['iterations']} iterations{tie}"


def choosing_number(scores: Iterable[Score], best: str, best_by: str) -> tuple[str, float]:
    """The number that says which evaluation is better, and what it is called.

    Args:
        scores: of the evaluation.
        best: the metric that chooses.
        best_by: "mean" of it, or "solved": the share of samples that reach `evaluate.solved_at`.
    """
    score = next(score for score in scores if score.name == best)
    if best_by == "solved":
        return f"{best}/pass_at_1", score.pass_at[1]
    return best, score.estimate.mean


def score_values(score: Score) -> dict[str, Any]:
    """A score as plain values, with those by source where there are any."""
    values = {
        "name": score.name,
        **asdict(score.estimate),
        "pass_at": {str(k): value for k, value in score.pass_at.items()},
    }
    if score.by_source:
        values["by_source"] = {
            source: {k: v for k, v in score_values(of_source).items() if k != "name"}
            for source, of_source in score.by_source.items()
        }
    return values


def score_metrics(split: str, scores: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Scores, as `score_values` gives them, as numbers for a tracker; of sources the largest."""
    metrics: dict[str, float] = {}
    for score in scores:
        name = "/".join(["evaluate", slug(split), *(slug(part) for part in score["name"].split("/"))])
        metrics[name] = score["mean"]
        metrics |= {f"{name}/pass_at_{k}": value for k, value in score["pass_at"].items()}
        by_source = score.get("by_source", {})
        for source in most_frequent({source: values["tasks"] for source, values in by_source.items()}):
            metrics[f"{name}/source/{slug(source)}"] = by_source[source]["mean"]
            metrics[f"{name}/source/{slug(source)}/pass_at_1"] = by_source[source]["pass_at"]["1"]
    return metrics


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One finished evaluation."""

    split: str
    index: int
    scores: tuple[Score, ...]
    done: Finished
    folder: str
    best: str  # the metric that says which is better
    best_so_far: str = ""  # a sentence: which evaluation of this split is the best now
    also: tuple[Evaluated, ...] = ()  # of the same weights, on tasks that choose nothing

    def as_dict(self) -> dict[str, Any]:
        """Plain values: what `result.json` holds and `--json` prints."""
        return {
            "split": self.split,
            "index": self.index,
            "scores": [score_values(score) for score in self.scores],
            "episodes": self.done.manifests["evaluate"].metrics,
            "notes": self.done.notes,
        }

    def metrics(self) -> dict[str, float]:
        """Numbers for a tracker, under `evaluate/<split>/`."""
        prefix = f"evaluate/{slug(self.split)}"
        found = score_metrics(self.split, [score_values(score) for score in self.scores])
        for name, value in self.done.metrics.items():
            if name.startswith(("role/", "rollout/", "step/")):
                found[f"{prefix}/{name}"] = value
        return found
