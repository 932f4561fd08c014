"""What the runs of a study have stored: tokens by checkpoint, scores by task, votes. Read once each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, Final

import pyarrow as pa

from pipeline.store.history import History, read_history
from pipeline.store.run import Run
from stages.vote import Tally, tally, votes_by_task

TOKENS: Final = "rollout/response_tokens"
SPARE: Final = 0.02  # by so much more a run may have sampled than another with "equally many" tokens
Scores = Mapping[str, float]  # by task


@dataclass
class Trained:
    """One run of a study, at each of its checkpoints: the numbers of iterations after which it was tested.

    Attributes:
        split: the one that chooses the best checkpoint.
        test: the one that is reported.
    """

    run: Run
    history: History
    split: str
    test: str
    _read: dict[tuple[str, int, str], Any] = field(default_factory=dict)

    @cached_property
    def metric(self) -> str:
        """The metric that chooses."""
        return str(self.history.info["best"][self.split]["metric"])

    @cached_property
    def chosen(self) -> dict[int, float]:
        """The score that chooses, by checkpoint."""
        return {
            int(result["index"]): next(s["mean"] for s in result["scores"] if s["name"] == self.metric)
            for result in self.history.evaluations
            if result["split"] == self.split
        }

    @cached_property
    def tested(self) -> list[int]:
        """Checkpoints with a test, ascending."""
        return sorted(r["index"] for r in self.history.evaluations if r["split"] == self.test)

    @cached_property
    def voted(self) -> list[int]:
        """Checkpoints with votes, ascending."""
        return sorted(r["index"] for r in self.history.evaluations if r["split"] == f"{self.test}.vote")

    def tokens(self, checkpoint: int) -> float:
        """Tokens sampled in training before a checkpoint."""
        return sum(m.get(TOKENS, 0.0) for m in self.history.iterations[:checkpoint])

    def affordable(self, checkpoints: Sequence[int], tokens: float | None) -> list[int]:
        """The checkpoints that so many tokens pay for; all of them without a limit."""
        if tokens is None:
            return list(checkpoints)
        return [c for c in checkpoints if self.tokens(c) <= tokens * (1 + SPARE)]

    def best(self, tokens: float | None = None) -> int | None:
        """The tested checkpoint that scored best on the split that chooses; of equals the earliest."""
        known = [c for c in self.affordable(self.tested, tokens) if c in self.chosen]
        return max(known, key=lambda c: (self.chosen[c], -c), default=None)

    def last(self, tokens: float | None = None) -> int | None:
        """The newest tested checkpoint."""
        return max(self.affordable(self.tested, tokens), default=None)

    def scores(self, checkpoint: int) -> Scores:
        """The mean over the plays of each test task; failed plays as 0."""
        return scores_by_task(self._table(self.test, checkpoint, "evaluation"), self.metric)

    def answer_tokens(self, checkpoint: int) -> float:
        """Sampled tokens of one answer of the team, on average over the test's plays."""
        episodes = self._table(self.test, checkpoint, "episodes")
        return fmean(n or 0 for n in episodes["num_response_tokens"].to_pylist())

    def votes(self, checkpoint: int, tokens: float) -> dict[str, Tally]:
        """By test task, a majority of independent answers within a budget of tokens a task."""
        label = f"{self.test}.vote"
        tables = [self._table(label, checkpoint, name) for name in ("votes", "evaluation")]
        by_task = votes_by_task(tables[0], tables[1], self.metric)
        return {task: tally(votes, tokens, task) for task, votes in by_task.items()}

    def voted_by(self, checkpoint: int | None) -> int | None:
        """The newest checkpoint with votes that is not after `checkpoint`."""
        return max((c for c in self.voted if checkpoint is not None and c <= checkpoint), default=None)

    def _table(self, label: str, checkpoint: int, name: str) -> pa.Table:
        key = (label, checkpoint, name)
        if key not in self._read:
            columns = {"episodes": ["num_response_tokens"]}.get(name)
            self._read[key] = self.run.evaluation(label, checkpoint).tables()[0][name].read(columns)
        return self._read[key]


def read_trained(root: str, name: str, split: str, test: str) -> Trained | None:
    """A run of a study; None where it has no test yet."""
    run = Run(root, name)
    if not run.exists:
        return None
    history = read_history(run)
    trained = Trained(run, history, split, test)
    return trained if trained.tested and split in history.info.get("best", {}) else None


def scores_by_task(evaluation: pa.Table, metric: str) -> dict[str, float]:
    """The mean of a metric over the plays of each task; a failed play is 0."""
    by_task: dict[str, list[float]] = {}
    for row in evaluation.to_pylist():
        value = next((v["value"] for v in row["values"] if v["name"] == metric), None)
        by_task.setdefault(row["task_id"], []).append(value or 0.0)
    return {task: fmean(values) for task, values in sorted(by_task.items())}


class TokenCounts:
    """Tokens that runs have sampled in their finished iterations; each iteration is read once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[str, list[float]] = {}

    def of(self, name: str) -> list[float]:
        """One number for each finished iteration of a run, in order."""
        run, counts = Run(self.root, name), self._known.setdefault(name, [])
        while (text := run.iteration(len(counts)).folder.read_text("done.json")) is not None:
            counts.append(float(json.loads(text).get("metrics", {}).get(TOKENS, 0.0)))
        return counts
