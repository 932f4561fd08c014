"""Outcome reward: how well the team's answer matches the gold answers, shared by all who worked on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rewards.base import PlayedEpisode
from rewards.grading import qa
from workflows.errors import UsageError
from workflows.trajectory import TRUNCATED


@dataclass(frozen=True, slots=True)
class TokenF1:
    """Token F1 of the episode's answer against `gold["answers"]`, given to every trainable llm turn.

    The answer is what the last turn of step `answer_step` parsed, as text; a team that gives no
    answer earns none. Where that turn kept no format or was cut off by the token limit, `malformed`
    says what is scored: its text as it stands (as UnityMAS-O does: words around an answer cost
    precision, and the format has its own penalty), or nothing.

    Options:
        answer_step: the step of the workflow that gives the answer.
        share: "full" gives each turn the whole F1; "split" divides it by the number of those turns.
        mode: how text is normalised, see `rewards.grading.qa`.
        malformed: "raw" scores the text of a turn without its format; "zero" scores nothing.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no gold answer that can be matched, or the answer is not text or a
            number; the episode is then excluded, not scored 0.
    """

    answer_step: str = "answer"
    share: Literal["full", "split"] = "full"
    mode: qa.Mode = "strict"
    malformed: Literal["raw", "zero"] = "raw"

    def __post_init__(self) -> None:
        if self.share not in ("full", "split"):
            raise UsageError(f"reward token_f1: share is {self.share!r}; use 'full' or 'split'")
        if self.mode not in qa.MODES:
            raise UsageError(f"reward token_f1: mode is {self.mode!r}; use one of {', '.join(qa.MODES)}")
        if self.malformed not in ("raw", "zero"):
            raise UsageError(f"reward token_f1: malformed is {self.malformed!r}; use 'raw' or 'zero'")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        outcome = qa.f1(self.answer_of(episode), self._golds(episode), self.mode)
        receivers = episode.trainable()
        if self.share == "split" and receivers:
            outcome /= len(receivers)
        shares: list[float | None] = [None] * len(episode.turns)
        for position in receivers:
            shares[position] = outcome
        return shares

    def answer_of(self, episode: PlayedEpisode) -> str:
        """The text that is graded; empty where there is none."""
        answers = [turn for turn in episode.turns if turn["step"] == self.answer_step]
        if not answers:
            return ""
        parsed = answers[-1]["parsed"]
        if parsed is None or answers[-1]["format_valid"] is False or answers[-1]["status"] == TRUNCATED:
            return str(answers[-1]["response_text"] or "") if self.malformed == "raw" else ""
        if isinstance(parsed, bool) or not isinstance(parsed, str | int | float):
            raise ValueError(
                f"step {self.answer_step!r} parsed {type(parsed).__name__}, not text or a number; "
                "let its parser return the answer alone"
            )
        return str(parsed)

    def _golds(self, episode: PlayedEpisode) -> list[str]:
        answers = episode.gold.get("answers")
        if not isinstance(answers, list):
            raise ValueError(f"gold has no list of answers; it has {sorted(episode.gold) or 'nothing'}")
        if golds := [str(g) for g in answers if qa.usable(str(g), self.mode)]:
            return golds
        raise ValueError(f"gold has no answer that mode {self.mode!r} can match")
