"""The judgement of reasoning-gym as a reward, for tasks that it made."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.answers import MALFORMED, SHARES, Malformed, Share, answer_of, last_turn, refuse_unknown, shared
from rewards.base import PlayedEpisode, RewardHooks
from workflows.data import reasoning_gym


@dataclass(frozen=True, slots=True)
class ReasoningGym(RewardHooks):
    """What the task's family says that the team's last answer is worth, for every trainable turn.

    Options:
        answer_step, answer_key, share, malformed: as of `exact_match`.

    Raises:
        UsageError: an option has an unknown value, or the package is missing.
        ValueError: the task is not one of reasoning-gym, or its family reaches no verdict; the episode is
            then excluded, not scored 0.
    """

    answer_step: str = "answer"
    answer_key: str | None = None
    share: Share = "full"
    malformed: Malformed = "raw"

    def __post_init__(self) -> None:
        refuse_unknown("share", self.share, SHARES)
        refuse_unknown("malformed", self.malformed, MALFORMED)

    def check_ready(self) -> None:
        reasoning_gym.check_ready()

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        if missing := {"question", "family", "config", "seed", "index"} - set(episode.gold):
            raise ValueError(
                f"gold has no {sorted(missing)[0]}: the reward reasoning_gym judges tasks of [data] format = "
                '"reasoning_gym"'
            )
        answer = answer_of(last_turn(episode, self.answer_step), self.malformed, self.answer_key)
        return shared(episode, reasoning_gym.score(episode.gold, answer), self.share)
