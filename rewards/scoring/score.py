"""From played episodes to the rewards table: pure, one row for every turn.

A reward that fails on an episode costs that episode its rewards, never the run, and never becomes
a 0: its turns carry the reason. The same holds for episodes that something other than the policy
broke. Rewards that can look at columns score a part at once; the others are asked episode by episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from rewards.base import PlayedEpisode
from rewards.scoring.by_columns import column_values, has_columns
from rewards.scoring.by_episode import RewardFailed, episodes_of, values_of
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN, Joined, join
from rewards.scoring.part import Flags, Numbers, PlayedPart
from rewards.scoring.reasons import kind_of
from rewards.scoring.table import (
    FROZEN,
    NO_VALUES,
    NOT_AN_LLM_TURN,
    RewardPart,
    reasons_of_turns,
    rewards_table,
)
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from workflows.errors import UsageError
from workflows.vocabulary import Status

__all__ = [
    "EPISODES_SEEN",
    "FROZEN",
    "NOT_AN_LLM_TURN",
    "NO_FAILURES",
    "NO_VALUES",
    "TASKS_SEEN",
    "TURNS_SEEN",
    "Truncated",
    "WeightedReward",
    "WeightedRewards",
    "kind_of",
    "score_turns",
    "score_variants",
]

Truncated = Literal["as_malformed", "exclude"]

NO_FAILURES: Final = frozenset({NOT_AN_LLM_TURN, FROZEN, NO_VALUES, Status.TRUNCATED})
"""Reasons why a turn has no reward although its episode was scored."""


def score_turns(
    tasks: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    rewards: WeightedRewards,
    *,
    truncated: Truncated = "as_malformed",
) -> pa.Table:
    """Score every episode; one row of `REWARDS` for every turn, sorted by key.

    `reward` is null, with `no_reward_reason`, for

    - all turns of an episode that is, or has a turn that is, `infra_error`, `timeout` or `cancelled`;
    - all turns of an episode on which a reward raised, or gave a number that is not finite or not one
      value per turn (`kind_of` takes the details off such a reason);
    - tool and control turns, and turns of models that are not trained;
    - truncated turns, if `truncated` is "exclude". The rest of such an episode is scored.

    `reward_parts` are before weights. Other columns than `TASKS_SEEN`, `TURNS_SEEN` and
    `EPISODES_SEEN` are not looked at.

    Raises:
        SchemaError: a turn of an episode, or an episode of a task, that is not there, or two rows of one key.
    """
    return score_variants(tasks, turns, episodes, [(rewards, truncated)])[0]


def score_variants(
    tasks: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    variants: Sequence[tuple[WeightedRewards, Truncated]],
) -> list[pa.Table]:
    """`score_turns` for several settings of rewards at once, a table each.

    Rows are read and decoded once. A reward object that several variants have, under the same name and
    for the same roles and steps, is called once for an episode.
    """
    for _, truncated in variants:
        if truncated not in get_args(Truncated):
            raise UsageError(f"truncated is {truncated!r}; use one of {', '.join(get_args(Truncated))}")
    joined = join(tasks, turns, episodes)
    scores = _scores(joined.part, [rewards for rewards, _ in variants])
    return [_table(joined, rewards, truncated, scores) for rewards, truncated in variants]


@dataclass(slots=True)
class _Scores:
    """What one reward gave the turns of a part, so far; `failed` says of an episode why it gave nothing."""

    values: Numbers
    given: Flags
    decided: Flags  # of each episode
    failed: dict[int, str] = field(default_factory=dict)


_ByReward = Mapping[tuple[Any, ...], _Scores]


def _scores(part: PlayedPart, variants: Sequence[WeightedRewards]) -> _ByReward:
    """What every reward of the variants gives: by columns first, then by episodes what is left.

    No reward is asked about an episode on which one before it failed in all variants that have it.
    """
    items = {item.key: item for rewards in variants for item in rewards.items}
    scores = {key: _by_columns(item, part) for key, item in items.items()}
    left = ~np.logical_and.reduce([of_reward.decided for of_reward in scores.values()])
    for position, episode in episodes_of(part, np.flatnonzero(left)):
        rows = slice(part.starts[position], part.starts[position] + len(episode.turns))
        for rewards in variants:
            for item in rewards.items:
                of_reward = scores[item.key]
                if position not in of_reward.failed and not of_reward.decided[position]:
                    _ask(item, episode, of_reward, position, rows)
                if position in of_reward.failed:
                    break
    return scores


def _by_columns(item: WeightedReward, part: PlayedPart) -> _Scores:
    turns, episodes = part.turns.height, part.num_episodes
    if not has_columns(item.reward) or not episodes:
        return _Scores(np.zeros(turns), np.zeros(turns, np.bool_), np.zeros(episodes, np.bool_))
    decided = np.ones(episodes, np.bool_)
    try:
        found = column_values(item, part)
    except RewardFailed as failure:
        failed = dict.fromkeys(range(episodes), str(failure))
        return _Scores(np.zeros(turns), np.zeros(turns, np.bool_), decided, failed)
    decided[found.undecided] = False
    return _Scores(found.values, found.given, decided)


def _ask(
    item: WeightedReward, episode: PlayedEpisode, of_reward: _Scores, position: int, rows: slice
) -> None:
    """Ask the one-episode form, and note its numbers or why it failed."""
    try:
        numbers = values_of(item, episode)
    except RewardFailed as failure:
        of_reward.failed[position] = str(failure)
        return
    of_reward.decided[position] = True
    of_reward.values[rows] = [0.0 if number is None else number for number in numbers]
    of_reward.given[rows] = [number is not None for number in numbers]


def _table(joined: Joined, rewards: WeightedRewards, truncated: Truncated, scores: _ByReward) -> pa.Table:
    reasons = reasons_of_turns(joined.turns, truncated == "exclude")
    failed: dict[int, str] = {}
    for item in rewards.items:  # the first one that failed is the reason
        failed = {**scores[item.key].failed, **failed}
    whole = dict(enumerate(joined.broken)) | {int(joined.positions[e]): why for e, why in failed.items()}
    reasons.add_whole({e: why for e, why in whole.items() if why is not None}, joined.episode)
    parts = []
    for item in rewards.items:
        values, given = np.zeros(len(joined.scored)), np.zeros(len(joined.scored), np.bool_)
        values[joined.scored] = scores[item.key].values
        given[joined.scored] = scores[item.key].given
        parts.append(RewardPart(item.name, item.weight, values, given))
    return rewards_table(joined.keys, parts, reasons)
