"""What outcome rewards share: one grade for the team's last answer, for all who worked on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    refuse_unknown,
    shared,
    shared_by_columns,
)
from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.part import PlayedPart


@dataclass(frozen=True, slots=True)
class OutcomeReward(ABC):
    """A grade of the episode's answer against `gold["answers"]`, for every receiver.

    Receivers are the trainable llm turns, or those of the roles and steps that the settings name. The
    answer is what the last turn of step `answer_step` parsed, as text; a team that gives no answer
    earns what no text earns. Where that turn kept no format or was cut off by the token limit,
    `malformed` says what is scored: what its parser's lenient rule reads, which for most is its text as
    it stands (as UnityMAS-O does: words around an answer cost precision, and the format has its own
    penalty), or nothing.

    Options:
        answer_step: the step of the workflow that gives the answer.
        answer_key: where the answer stands in what that step parsed, if its parser gives a mapping.
        share: "full" gives each receiver the whole grade; "split" divides it by their number.
        mode: how text is normalised, see `rewards.grading.qa`.
        malformed: "raw" scores what can be read of a turn without its format; "zero" scores nothing.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no gold answer that can be matched, or the answer is not text or a
            number; the episode is then excluded, not scored 0.
    """

    answer_step: str = "answer"
    answer_key: str | None = None
    share: Share = "full"
    mode: qa.Mode = "strict"
    malformed: Malformed = "raw"

    @abstractmethod
    def grade(self, golds: qa.Golds, answer: str) -> float:
        """What an answer is worth."""

    def __post_init__(self) -> None:
        refuse_unknown("share", self.share, SHARES)
        refuse_unknown("mode", self.mode, qa.MODES)
        refuse_unknown("malformed", self.malformed, MALFORMED)

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        answer = answer_of(last_turn(episode, self.answer_step), self.malformed, self.answer_key)
        golds = golds_of(episode, self.mode)
        return shared(episode, self.grade(golds, answer), self.share)

    def by_columns(self, part: PlayedPart) -> pl.Series:
        golds = golds_by_task(part, self.mode)
        outcomes = last_grades(part, self.answer_step, self.answer_key, self.malformed, golds, self.grade)
        return shared_by_columns(part, outcomes, self.share)
