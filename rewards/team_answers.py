"""Rewards of teams whose members answer the task themselves: who was right, in the task's own grader.

A workflow declares which of its steps answer the task (`branch_steps`), which gives the team's answer
(`answer_step`), which judges answers (`verdict_step`) and of what kind its tasks are (`task`): options that
the settings leave out come from there. Each answer is right (1) or not (0):

- "questions": it equals a gold answer after normalising (`rewards.grading.qa`);
- "mathematics": it equals a gold answer as mathematics (`rewards.grading.math`);
- "code": it passes all of `gold["private_tests"]`.

`BranchRight`, `FinalRight` and `Satisfied` say what happened, and are stored with weight 0 for each run of
such a workflow; the metrics `answers/…` are made of them. `BranchMeasure` says the like in evaluations.
`TeamRight`, `RightByRole` and `RightRubric` pay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl

from rewards.answers import (
    SHARES,
    Share,
    kept_format,
    last_grades,
    last_rows,
    refuse_unknown,
    shared,
    shared_by_columns,
)
from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.part import Numbers, PlayedPart
from rewards.team_grading import AnswersReward, Values, satisfied, verdict_of
from workflows.vocabulary import Event

Measure = Literal["share", "any", "majority", "lost", "rescued"]


@dataclass(frozen=True, slots=True)
class BranchRight(AnswersReward):
    """Each turn of `branch_steps`: 1 where its own answer is right, else 0. Frozen roles count too."""

    def values(self, episode: PlayedEpisode) -> Values:
        return [
            self.right(episode, turn) if turn["step"] in self.branch_steps else None for turn in episode.turns
        ]

    def by_columns(self, part: PlayedPart) -> pl.Series:
        rows = part.rows(pl.col("step").is_in(list(self.branch_steps)))
        values, given = np.zeros(part.turns.height), np.zeros(part.turns.height, np.bool_)
        values[rows], given[rows] = self.right_at(part, rows), True
        return part.series(values, given)


@dataclass(frozen=True, slots=True)
class FinalRight(AnswersReward):
    """The turn that gives the team's answer: 1 where it is right, else 0. The others get nothing.

    A team that gives no answer has its 0 on its last llm turn.
    """

    def values(self, episode: PlayedEpisode) -> Values:
        values: Values = [None] * len(episode.turns)
        turns = list(enumerate(episode.turns))
        answers = [i for i, turn in turns if turn["step"] == self.answer_step]
        spoken = [i for i, turn in turns if turn["event"] == Event.LLM]
        if carriers := answers or spoken:
            values[carriers[-1]] = self.final(episode)
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        carriers = last_rows(part, self.answer_step)
        spoken = part.rows(pl.col("event") == Event.LLM)
        last = np.full(part.num_episodes, -1, np.intp)
        last[part.episode[spoken]] = spoken  # ascending: the last one stays
        carriers = np.where(carriers >= 0, carriers, last)
        said = carriers >= 0
        values, given = np.zeros(part.turns.height), np.zeros(part.turns.height, np.bool_)
        values[carriers[said]], given[carriers[said]] = _outcomes(self, part)[said], True
        return part.series(values, given)


@dataclass(frozen=True, slots=True)
class Satisfied(AnswersReward):
    """Each turn of `verdict_step`: 1 where its verdict is "satisfied", else 0."""

    def values(self, episode: PlayedEpisode) -> Values:
        return [float(satisfied(t)) if t["step"] == self.verdict_step else None for t in episode.turns]


@dataclass(frozen=True, slots=True)
class BranchMeasure(AnswersReward):
    """Every turn: what the branches of the episode make of the task, as an [[evaluate.rewards]] wants it.

    Options:
        measure: "share" of the branches that are right; "any" of them is; "majority", more than half of
            them are; "lost", some branch is right and the team's answer is not; "rescued", no branch is
            right and the team's answer is. All are 0 or 1 but "share"; without a branch, none is right.
    """

    measure: Measure = "any"

    def __post_init__(self) -> None:
        AnswersReward.__post_init__(self)
        refuse_unknown("measure", self.measure, get_args(Measure))

    def values(self, episode: PlayedEpisode) -> Values:
        branches = [self.right(episode, t) for t in episode.turns if t["step"] in self.branch_steps]
        share = sum(branches) / len(branches) if branches else 0.0
        if self.measure == "share":
            return shared(episode, share, "full")
        if self.measure == "majority":
            return shared(episode, float(share > 0.5), "full")
        if self.measure == "any":
            return shared(episode, float(share > 0), "full")
        is_final_right = bool(self.final(episode))
        lost = self.measure == "lost"
        return shared(episode, float((share > 0) == lost and is_final_right != lost), "full")


@dataclass(frozen=True, slots=True)
class TeamRight(AnswersReward):
    """Every turn: 1 where the team's answer is right, else 0.

    Options:
        share: "full" gives each turn all of it; "split" divides it by their number.
    """

    share: Share = "full"

    def __post_init__(self) -> None:
        AnswersReward.__post_init__(self)
        refuse_unknown("share", self.share, SHARES)

    def values(self, episode: PlayedEpisode) -> Values:
        return shared(episode, self.final(episode), self.share)

    def by_columns(self, part: PlayedPart) -> pl.Series:
        return shared_by_columns(part, _outcomes(self, part), self.share)


@dataclass(frozen=True, slots=True)
class RightByRole(AnswersReward):
    """Every turn for its own work: an answer for being right, a verdict for agreeing with the truth.

    A verdict is right (1) where it is "satisfied" and the last answer before it is right, or readable and
    not satisfied where that is wrong; else 0. Other turns, an orchestrator's, get the team's answer.
    """

    def values(self, episode: PlayedEpisode) -> Values:
        values: Values = [None] * len(episode.turns)
        for position in episode.trainable():
            turn = episode.turns[position]
            if self.is_answer(turn):
                values[position] = self.right(episode, turn)
            elif turn["step"] == self.verdict_step:
                values[position] = self._agrees(episode, position)
            else:
                values[position] = self.final(episode)
        return values

    def _agrees(self, episode: PlayedEpisode, position: int) -> float:
        turn = episode.turns[position]
        judged = [
            t
            for t in episode.turns[:position]
            if t["step"] in self.branch_steps and t["branch"] == turn["branch"]
        ]
        if not judged or not verdict_of(turn):
            return 0.0
        return float(satisfied(turn) == bool(self.right(episode, judged[-1])))


@dataclass(frozen=True, slots=True)
class RightRubric(AnswersReward):
    """A sum: for the own answer right, for the team's right, for the own wrong though parseable.

    Turns that answer get all three; the team's answer is its turn's own too. Other turns get `team` alone.
    Source: the additive rubric of the voting workflow of arXiv:2605.24202.

    Options:
        own, team: for the own answer and for the team's, where it is right.
        wrong: for an own answer that keeps its format and is wrong.
    """

    own: float = 0.5
    team: float = 0.5
    wrong: float = -1.0

    def values(self, episode: PlayedEpisode) -> Values:
        values: Values = [None] * len(episode.turns)
        shared_part = self.team * self.final(episode)
        for position in episode.trainable():
            turn = episode.turns[position]
            earned = 0.0
            if self.is_answer(turn):
                is_own_right = bool(self.right(episode, turn))
                earned = self.own if is_own_right else self.wrong if kept_format(turn) else 0.0
            values[position] = earned + shared_part
        return values


def _outcomes(reward: AnswersReward, part: PlayedPart) -> Numbers:
    """`final` of each episode, for questions; NaN where the columns do not decide."""
    golds = reward.golds(part)
    return last_grades(part, reward.answer_step, None, "raw", golds, qa.Golds.exact_match)
