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

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from rewards.answers import (
    SHARES,
    Share,
    answer_of,
    golds_of,
    kept_format,
    last_turn,
    refuse_unknown,
    shared,
)
from rewards.base import PlayedEpisode, RewardHooks
from rewards.grading import qa
from rewards.grading.math import GradingError
from rewards.math_correct import is_right, problem_golds
from rewards.pass_rate_by_round import code_of, judge_of, private_pass_rate
from workflows.errors import UsageError
from workflows.tools.code.isolation import Sandbox
from workflows.vocabulary import Event

Task = Literal["questions", "mathematics", "code"]
Measure = Literal["share", "any", "majority", "lost", "rescued"]
Values = list[float | None]

SATISFIED: Final = "satisfied"


@dataclass(frozen=True, slots=True)
class AnswersReward(RewardHooks, ABC):
    """What these rewards share: which turns answer, and how an answer is graded.

    Options:
        task, branch_steps, answer_step, verdict_step: as the workflow declares them.
        mode: how questions are normalised, see `rewards.grading.qa`.
        exact: of mathematics, see `rewards.math_correct.MathCorrect`.
        sandbox, limits: of code, see `rewards.pass_rate_by_round.PassRateByRound`.
        strict: a task that can't be graded costs the episode its rewards; false: it has no value here.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no gold that can be matched (strict only).
        InfraError: the sandbox failed.
    """

    task: Task = "questions"
    branch_steps: tuple[str, ...] = ()
    answer_step: str = "answer"
    verdict_step: str | None = None
    mode: qa.Mode = "strict"
    exact: bool = False
    sandbox: Sandbox | str = "auto"
    limits: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = True

    def __post_init__(self) -> None:
        refuse_unknown("task", self.task, get_args(Task))
        refuse_unknown("mode", self.mode, qa.MODES)
        if isinstance(self.branch_steps, str) or not all(isinstance(s, str) for s in self.branch_steps):
            raise UsageError(f"option branch_steps must be a list of steps, got {self.branch_steps!r}")
        for name in ("exact", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"option {name} must be true or false, got {getattr(self, name)!r}")
        if self.task == "code":
            judge_of(self.sandbox, self.limits)  # refuses what it does not know

    def check_ready(self) -> None:
        """Called before a run starts.

        Raises:
            UsageError: the tasks are programs, and this machine has no sandbox for them.
        """
        if self.task == "code":
            judge_of(self.sandbox, self.limits).check()

    def __call__(self, episode: PlayedEpisode) -> Values:
        try:
            return self.values(episode)
        except (ValueError, GradingError):
            if self.strict:
                raise
            return [None] * len(episode.turns)

    @abstractmethod
    def values(self, episode: PlayedEpisode) -> Values:
        """One number or None for each turn.

        Raises:
            ValueError, GradingError: the task can't be graded.
        """

    def right(self, episode: PlayedEpisode, turn: Mapping[str, Any] | None) -> float:
        """1 where the answer of a turn is right, else 0, also for a turn that was never taken."""
        if self.task == "questions":
            golds = qa.Golds(golds_of(episode, self.mode), self.mode)
            return float(golds.exact_match(answer_of(turn)))
        if self.task == "mathematics":
            golds_text = tuple(problem_golds(episode))
            return _math_right(answer_of(turn).strip(), golds_text, self.exact)
        code = None if turn is None else code_of(turn)
        return float(private_pass_rate(episode, code, self.sandbox, self.limits) == 1.0)

    def final(self, episode: PlayedEpisode) -> float:
        """Whether the team's answer is right."""
        return self.right(episode, last_turn(episode, self.answer_step))

    def is_answer(self, turn: Mapping[str, Any]) -> bool:
        """Whether a turn answers the task by itself, for the team or beside it."""
        return turn["event"] == Event.LLM and turn["step"] in (*self.branch_steps, self.answer_step)


@dataclass(frozen=True, slots=True)
class BranchRight(AnswersReward):
    """Each turn of `branch_steps`: 1 where its own answer is right, else 0. Frozen roles count too."""

    def values(self, episode: PlayedEpisode) -> Values:
        return [
            self.right(episode, turn) if turn["step"] in self.branch_steps else None for turn in episode.turns
        ]


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


def verdict_of(turn: Mapping[str, Any]) -> str:
    """The verdict that a turn parsed; empty where it has none."""
    parsed = turn["parsed"]
    return str(parsed.get("verdict") or "") if isinstance(parsed, Mapping) else ""


def satisfied(turn: Mapping[str, Any]) -> bool:
    """Whether a turn's verdict is "satisfied"."""
    return verdict_of(turn) == SATISFIED


@functools.lru_cache(maxsize=4096)
def _math_right(answer: str, golds: tuple[str, ...], exact: bool) -> float:
    """Graded once for each answer: the measures and the rewards of a turn ask for the same."""
    return float(is_right(answer, list(golds), exact))
