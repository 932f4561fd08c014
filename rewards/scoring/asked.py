"""Rewards asked about the episodes of a part: all at once where they can, one by one where they can't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewards.base import PlayedEpisode
from rewards.part import Flags, Numbers, PlayedPart
from rewards.scoring.by_columns import column_values, has_columns
from rewards.scoring.by_episode import RewardFailed, episodes_of, values_of
from rewards.scoring.weighted import WeightedReward, WeightedRewards


@dataclass(slots=True)
class Scores:
    """What one reward has given the turns of a part; `failed` says why it gave an episode nothing."""

    values: Numbers
    given: Flags
    decided: Flags  # of each episode
    failed: dict[int, str] = field(default_factory=dict)


ByReward = Mapping[tuple[Any, ...], Scores]
"""By `WeightedReward.key`."""


def scores_of(part: PlayedPart, lists: Sequence[WeightedRewards]) -> ByReward:
    """What every reward of some lists gives: by columns first, then by episodes what is left.

    A reward object that several lists have, under one name and for the same turns, is asked once. No reward
    is asked about an episode on which one before it failed in all lists that have it.
    """
    items = {item.key: item for rewards in lists for item in rewards.items}
    scores = {key: _by_columns(item, part) for key, item in items.items()}
    left = ~np.logical_and.reduce([of_reward.decided for of_reward in scores.values()])
    for position, episode in episodes_of(part, np.flatnonzero(left)):
        rows = slice(part.starts[position], part.starts[position] + len(episode.turns))
        for rewards in lists:
            for item in rewards.items:
                of_reward = scores[item.key]
                if position not in of_reward.failed and not of_reward.decided[position]:
                    _ask(item, episode, of_reward, position, rows)
                if position in of_reward.failed:
                    break
    return scores


def _by_columns(item: WeightedReward, part: PlayedPart) -> Scores:
    turns, episodes = part.turns.height, part.num_episodes
    if not has_columns(item.reward) or not episodes:
        return Scores(np.zeros(turns), np.zeros(turns, np.bool_), np.zeros(episodes, np.bool_))
    decided = np.ones(episodes, np.bool_)
    try:
        by_columns = column_values(item, part)
    except RewardFailed as failure:
        failed = dict.fromkeys(range(episodes), str(failure))
        return Scores(np.zeros(turns), np.zeros(turns, np.bool_), decided, failed)
    decided[by_columns.undecided] = False
    return Scores(by_columns.values, by_columns.given, decided)


def _ask(item: WeightedReward, episode: PlayedEpisode, of_reward: Scores, position: int, rows: slice) -> None:
    """Ask the one-episode form, and note its numbers or why it failed."""
    try:
        numbers = values_of(item, episode)
    except RewardFailed as failure:
        of_reward.failed[position] = str(failure)
        return
    of_reward.decided[position] = True
    of_reward.values[rows] = [0.0 if number is None else number for number in numbers]
    of_reward.given[rows] = [number is not None for number in numbers]
