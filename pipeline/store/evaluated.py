"""One finished evaluation: its scores and the place that they were made in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.settings.names import slug
from pipeline.store.finished import Finished
from stages.evaluate import Score


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
            found |= {f"{name}/pass_at_{k}": value for k, value in score.pass_at.items()}
        for name, value in self.done.metrics.items():
            if name.startswith(("role/", "rollout/")):
                found[f"{prefix}/{name}"] = value
        return found
