"""Outcome reward: how well the team's answer matches the gold answers, shared by all who worked on it."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.grading import qa
from rewards.outcome import OutcomeReward


@dataclass(frozen=True, slots=True)
class TokenF1(OutcomeReward):
    """Token F1 of the episode's answer, the best over the gold answers; options as in `OutcomeReward`."""

    def grade(self, golds: qa.Golds, answer: str) -> float:
        return golds.f1(answer)
