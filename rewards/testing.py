"""For tests: rewards whatever model replies, and whether both forms of a reward say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rewards.base import ColumnReward, PlayedEpisode, Reward
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards


def distinct_characters(episode: PlayedEpisode) -> list[float | None]:
    """How many different characters a reply has: an untrained model's replies differ in this too."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        values[position] = float(len(set(episode.turns[position]["response_text"] or "")))
    return values


def constant(episode: PlayedEpisode) -> list[float | None]:
    """1 for every trained turn: nothing can be learned from it."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        values[position] = 1.0
    return values


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A reward without its column form."""

    reward: Reward

    def __call__(self, episode: PlayedEpisode) -> Sequence[float | None]:
        return self.reward(episode)


def check_forms(reward: ColumnReward, tasks: pa.Table, turns: pa.Table, episodes: pa.Table) -> None:
    """Both forms of a reward give these turns the same numbers, to the last bit, and the same reasons.

    Raises:
        AssertionError: naming the first turn that differs, and what each form gives it.
    """
    forms: tuple[Reward, Reward] = (reward, OneByOne(reward))
    both = [
        score_turns(tasks, turns, episodes, WeightedRewards((WeightedReward("checked", 1.0, form),)))
        for form in forms
    ]
    columns, rows = (_seen(table) for table in both)
    for by_columns, by_episode in zip(columns, rows, strict=True):
        if by_columns != by_episode:
            raise AssertionError(
                f"turn {by_columns[1]} of episode {by_columns[0]!r}: by columns {by_columns[3]}, by episode "
                f"{by_episode[3]}"
            )


def _seen(table: pa.Table) -> list[tuple[str, int, bytes, object]]:
    """For each turn: its key, the bits of its number, and what to show of it."""
    seen = []
    for row in table.to_pylist():
        shown = row["no_reward_reason"] if row["reward"] is None else row["reward"]
        bits = np.float64(np.nan if row["reward"] is None else row["reward"]).tobytes()
        seen.append((row["episode_id"], row["turn_index"], bits, shown))
    return seen
