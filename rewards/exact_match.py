"""Outcome reward: whether the team's answer is one of the gold answers, shared by all who worked on it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rewards.answers import (
    MALFORMED,
    SHARES,
    Malformed,
    Share,
    answer_of,
    golds_by_task,
    golds_of,
    last_grades,
    last_turn,
    shared,
    shared_by_columns,
)
from rewards.answers import refuse_unknown as refuse
from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.part import PlayedPart


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """1 where the episode's answer equals any of `gold["answers"]` after normalising, else 0.

    What the answer is, who receives it and what the options mean is as in `token_f1`.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: as `token_f1`; the episode is then excluded, not scored 0.
    """

    answer_step: str = "answer"
    answer_key: str | None = None
    share: Share = "full"
    mode: qa.Mode = "strict"
    malformed: Malformed = "raw"

    def __post_init__(self) -> None:
        refuse("share", self.share, SHARES)
        refuse("mode", self.mode, qa.MODES)
        refuse("malformed", self.malformed, MALFORMED)

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        answer = answer_of(last_turn(episode, self.answer_step), self.malformed, self.answer_key)
        return shared(episode, qa.exact_match(answer, golds_of(episode, self.mode), self.mode), self.share)

    def by_columns(self, part: PlayedPart) -> pl.Series:
        golds = golds_by_task(part, self.mode)
        outcomes = last_grades(
            part, self.answer_step, self.answer_key, self.malformed, golds, qa.Golds.exact_match
        )
        return shared_by_columns(part, outcomes, self.share)
