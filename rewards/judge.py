"""A judge's mark as a reward: the number that a turn of some role names, for the turns of the others.

The judge is a role like any other, best on a frozen model (`train = false`), whose step nothing else
needs to read. What it said is on its turn, so a run can be scored again with another reading of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewards.answers import refuse_unknown
from rewards.base import PlayedEpisode
from workflows.errors import UsageError
from workflows.thinking import after_thinking
from workflows.vocabulary import Status


@dataclass(frozen=True, slots=True)
class Judge:
    """The mark of step `step` on a scale from 0 to 1, for every trainable llm turn but the judge's own.

    The number is what the judge's parser read: a number, a text that is one, or the value of `key` in a
    mapping. With `pattern` it is the first group of the last match in the raw reply instead.

    Options:
        step: the judge's step.
        scale: the lowest and the highest mark; they become 0 and 1. With a falling scale the lowest is best.
        key: where the number stands in a mapping that the parser gave.
        pattern: a regular expression with one group.
        combine: what several turns of the judge give: the "last" of them, or the "mean" of all.
        malformed: a judge that has not run or names no mark on the scale is never a 0. "exclude" leaves
            the whole episode out, with the reason; "skip" gives no number here and lets others stand.

    Raises:
        UsageError: an option that can't be used.
        ValueError: there is no mark, and `malformed` is "exclude".
    """

    step: str = "judge"
    scale: Sequence[float] = (0.0, 1.0)
    key: str | None = None
    pattern: str | None = None
    combine: Literal["last", "mean"] = "last"
    malformed: Literal["exclude", "skip"] = "exclude"

    def __post_init__(self) -> None:
        refuse_unknown("combine", self.combine, ("last", "mean"))
        refuse_unknown("malformed", self.malformed, ("exclude", "skip"))
        if len(self.scale) != 2 or not all(map(_is_number, self.scale)) or self.scale[0] == self.scale[1]:
            raise UsageError(f"option scale is two different numbers, lowest and highest; got {self.scale!r}")
        if self.pattern is None:
            return
        if self.key is not None:
            raise UsageError("options key and pattern are two ways to one number; give one of them")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise UsageError(
                f"option pattern is {self.pattern!r}, which is not a regular expression: {error}"
            ) from error
        if groups != 1:
            raise UsageError(f"option pattern has {groups} groups; the number is the one group")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        values: list[float | None] = [None] * len(episode.turns)
        try:
            mark = self.mark_of(episode)
        except ValueError:
            if self.malformed == "skip":
                return values
            raise
        for position in episode.trainable():
            if episode.turns[position]["step"] != self.step:
                values[position] = mark
        return values

    def mark_of(self, episode: PlayedEpisode) -> float:
        """The judge's mark, from 0 to 1.

        Raises:
            ValueError: it has not run, or one of its turns that count names no number within the scale.
        """
        turns = [turn for turn in episode.turns if turn["step"] == self.step]
        if not turns:
            raise ValueError(f"step {self.step!r} has not run")
        marks = [self._mark(turn) for turn in (turns[-1:] if self.combine == "last" else turns)]
        return math.fsum(marks) / len(marks)

    def _mark(self, turn: Mapping[str, Any]) -> float:
        number = self._number(turn)
        lowest, highest = self.scale
        if not min(self.scale) <= number <= max(self.scale):
            raise ValueError(f"the mark {number:g} is not on the scale from {lowest:g} to {highest:g}")
        return (number - lowest) / (highest - lowest)

    def _number(self, turn: Mapping[str, Any]) -> float:
        if self.pattern is not None:
            matches = re.findall(self.pattern, after_thinking(turn["response_text"] or ""))
            said: Any = matches[-1] if matches else None
        elif turn["format_valid"] is False or turn["status"] == Status.TRUNCATED:
            said = None
        else:
            said = turn["parsed"]
            if self.key is not None:
                said = said.get(self.key) if isinstance(said, Mapping) else None
        try:
            number = math.nan if isinstance(said, bool) else float(said)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"step {self.step!r} names no mark in {str(turn['response_text'])!r:.80}")
        return number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
