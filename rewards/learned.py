"""A reward model's score as a reward: of whole plays, by what was learned from pairs of stored ones.

What computes the score has weights and is given to this reward (`pipeline.plan.rewards`), so that rewards
know no network. Every play has the score that it has alone: its bits depend on no other play.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import polars as pl

from rewards.base import PlayedEpisode, RewardHooks
from rewards.part import PlayedPart
from rewards.preferences.render import render
from rewards.scoring.by_episode import episodes_of
from workflows.errors import UsageError


class Scorer(Protocol):
    """Scores texts of plays, each by itself: in units of the deviation on the plays that it learned from,
    around their mean. Pickles."""

    def __call__(self, texts: Sequence[str]) -> Sequence[float]: ...

    def check_ready(self) -> None: ...

    def opened(self) -> AbstractContextManager[Scorer]: ...


@dataclass(frozen=True)
class Learned(RewardHooks):
    """The score of the reward model `model`, for every trainable turn of a play.

    It has mean 0 and deviation 1 over the plays that the model learned from.

    Options:
        model: folder or URL of a reward model, or the name of one under `run.root`.
        answer_step: the step that gives the team's answer, as in the workflow.
        most: scores are cut at this number and at its negative; None does not cut.
        device_gpus: GPUs of the process that computes scores; parts of one are possible.
        workers: how many such processes there are.

    Raises:
        UsageError: an option that can't be used.
    """

    model: str
    answer_step: str | None = None
    most: float | None = None
    device_gpus: float = 0.0
    workers: int = 1
    scorer: Scorer | None = None

    takes_long = True

    def __post_init__(self) -> None:
        if self.most is not None and not (self.most > 0 and math.isfinite(self.most)):
            raise UsageError(f"option most of learned must be above 0, got {self.most!r}")
        if self.workers < 1 or not 0 <= self.device_gpus <= 1:
            raise UsageError(
                "options of learned: workers is 1 or more and device_gpus from 0 to 1, got "
                f"{self.workers!r} and {self.device_gpus!r}"
            )

    def check_ready(self) -> None:
        """See `RewardHooks`: the model is there, and reads plays as this version writes them."""
        self._scorer.check_ready()

    def opened(self) -> AbstractContextManager[Learned]:
        """See `RewardHooks`: the weights are loaded once, in processes of their own."""
        return self._opened()

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        (score,) = self._scores([render(episode, self.answer_step)])
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            values[position] = score
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        """See `rewards.base.ColumnReward`."""
        plays = episodes_of(part, np.arange(part.num_episodes))
        scores = self._scores([render(episode, self.answer_step) for _, episode in plays])
        return part.series(np.asarray(scores, dtype=np.float64)[part.episode], part.receives)

    def _scores(self, texts: Sequence[str]) -> list[float]:
        scores = [float(score) for score in self._scorer(texts)]
        return scores if self.most is None else [min(max(s, -self.most), self.most) for s in scores]

    @contextmanager
    def _opened(self) -> Iterator[Learned]:
        with self._scorer.opened() as scorer:
            yield replace(self, scorer=scorer)

    @property
    def _scorer(self) -> Scorer:
        if self.scorer is None:
            raise UsageError(
                "reward 'learned' has nothing that computes scores; use it in the settings of a run"
            )
        return self.scorer
