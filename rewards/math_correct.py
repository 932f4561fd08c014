"""Outcome reward: whether the team's final result equals a gold answer, for every turn of the episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.answers import SHARES, Share, answer_of, last_turn, refuse_unknown
from rewards.base import PlayedEpisode
from rewards.grading.math import GradingError, equal
from rewards.grading.math_extract import extract_answer
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class MathCorrect:
    """1 where the final answer equals any of `gold["answers"]`, else 0, for every trainable llm turn.

    The final answer is what tag `final_key` of the last turn of `answer_step` holds, read leniently: a
    reply that breaks its format may still be right. Without that tag the team has no answer, which is
    wrong, whatever was said before. Inside the tag, `rewards.grading.math` finds the answer (a box, a line
    "answer: …", else all of it; a box that is never closed is no answer) and compares it.

    Options:
        answer_step: the step that gives the final answer; `final_key`: the tag that holds it, or empty
            for a step whose parser returns the answer alone.
        share: "full" gives each turn the whole outcome; "split" divides it by the number of those turns.
        exact: a decimal never stands for a number that it only rounds to. By default one of six significant
            digits or more does (0.333333 for 1/3), since golds are often rounded themselves; turn it on
            where the closed form is the point.
        fall_back: take the answer of `refine_step` where the final one is missing.
        verifier_credit: turns of `verify_step` are paid for being right themselves, 1 where STATUS is
            "correct" and the answer of `solve_step` is right, or "incorrect" and it is not; 0 otherwise.
            They then take no share of the outcome.
        solve_step, verify_step, refine_step: steps of the workflow.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no gold answer that can be matched; the episode is then excluded, not
            scored 0.
        GradingError: no verdict in bounded time; likewise.
    """

    answer_step: str = "finalise"
    final_key: str = "FINAL_ANSWER"
    share: Share = "full"
    exact: bool = False
    fall_back: bool = False
    verifier_credit: bool = False
    solve_step: str = "solve"
    verify_step: str = "verify"
    refine_step: str = "refine"

    def __post_init__(self) -> None:
        refuse_unknown("share", self.share, SHARES)
        for name in ("exact", "fall_back", "verifier_credit"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"option {name} must be true or false, got {getattr(self, name)!r}")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        golds = problem_golds(episode)
        outcome = float(is_right(self.answer_of(episode), golds, self.exact))
        receivers = episode.trainable()
        values: list[float | None] = [None] * len(episode.turns)
        if self.verifier_credit:
            for position in receivers:
                if episode.turns[position]["step"] == self.verify_step:
                    values[position] = self._verifier_was_right(episode, golds, position)
        sharers = [position for position in receivers if values[position] is None]
        for position in sharers:
            values[position] = outcome / len(sharers) if self.share == "split" else outcome
        return values

    def answer_of(self, episode: PlayedEpisode) -> str:
        """The answer that is graded; empty where there is none."""
        answer = _tag(last_turn(episode, self.answer_step), self.final_key)
        if not answer and self.fall_back:
            answer = _tag(last_turn(episode, self.refine_step), "ANSWER")
        return answer

    def _verifier_was_right(self, episode: PlayedEpisode, golds: list[str], position: int) -> float:
        earlier = [t for t in episode.turns[:position] if t["step"] == self.solve_step]
        right = bool(earlier) and is_right(_tag(earlier[-1], "ANSWER"), golds, self.exact)
        return float(_tag(episode.turns[position], "STATUS") == ("correct" if right else "incorrect"))


def _tag(turn: Mapping[str, Any] | None, key: str) -> str:
    return answer_of(turn, key=key or None).strip()


def is_right(answer: str, golds: list[str], exact: bool) -> bool:
    """Whether any gold matches. An answer that can't be compared with one of them may match another."""
    said, failure = extract_answer(answer, "text"), None
    for gold in golds:
        try:
            if equal(said, gold, exact).correct:
                return True
        except GradingError as error:
            failure = error
    if failure is not None:
        raise failure
    return False


def problem_golds(episode: PlayedEpisode) -> list[str]:
    """The gold answers of an episode's task that something can match.

    Raises:
        ValueError: there is none.
    """
    answers = episode.gold.get("answers")
    if not isinstance(answers, list):
        raise ValueError(f"gold has no list of answers; it has {sorted(episode.gold) or 'nothing'}")
    if golds := [str(gold) for gold in answers if equal(str(gold), str(gold)).correct]:
        return golds
    raise ValueError("gold has no answer that anything can match")
