"""Outcome reward: whether the team's answer is one of the gold answers, shared by all who worked on it."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.grading import qa
from rewards.outcome import OutcomeReward


@dataclass(frozen=True, slots=True)
class ExactMatch(OutcomeReward):
    """1 where the episode's answer equals any gold answer after normalising, else 0; options as in
    `OutcomeReward`."""

    def grade(self, golds: qa.Golds, answer: str) -> float:
        return golds.exact_match(answer)
