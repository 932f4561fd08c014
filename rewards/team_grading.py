"""How an answer of a team is graded, and which turns of a workflow answer: for `rewards.team_answers`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from rewards.answers import (
    answer_of,
    answers_at,
    golds_by_task,
    golds_of,
    grades_of,
    last_turn,
    refuse_unknown,
)
from rewards.base import PlayedEpisode, RewardHooks
from rewards.grading import qa
from rewards.grading.math import GradingError
from rewards.math_correct import is_right, problem_golds
from rewards.part import Numbers, PlayedPart, Rows
from rewards.pass_rate_by_round import code_of, judge_of, private_pass_rate
from workflows.errors import UsageError
from workflows.tools.code.isolation import Sandbox
from workflows.vocabulary import Event

Task = Literal["questions", "mathematics", "code"]
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
            golds = golds_of(episode, self.mode)
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

    @property
    def scores_columns(self) -> bool:
        """Questions are graded by column; mathematics and code have graders that are worth a task each."""
        return self.task == "questions"

    def golds(self, part: PlayedPart) -> Sequence[qa.Golds | None]:
        """The golds of each question of a part; None where none can be matched."""
        return golds_by_task(part, self.mode)

    def right_at(self, part: PlayedPart, rows: Rows) -> Numbers:
        """`right` of the turns at these rows, for questions; NaN where the columns do not decide."""
        tasks = part.task[part.episode[rows]]
        return grades_of(answers_at(part, rows), tasks, self.golds(part), qa.Golds.exact_match)


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
