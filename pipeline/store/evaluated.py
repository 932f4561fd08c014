"""One finished evaluation: its scores and the place that they were made in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.settings.names import slug
from pipeline.store.finished import Finished
from stages.evaluate import Score


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
            name = f"{prefix}/{'/'.join(slug(part) for part in score.name.split('/'))}"
            found[name] = score.estimate.mean
            found |= {f"{name}/pass_at_{k}": value for k, value in score.pass_at.items()}
        for name, value in self.done.metrics.items():
            if name.startswith(("role/", "rollout/")):
                found[f"{prefix}/{name}"] = value
        return found
