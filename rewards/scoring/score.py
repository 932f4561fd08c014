"""From played episodes to the rewards table: pure, one row for every turn.

A reward that fails on an episode costs that episode its rewards, never the run, and never becomes
a 0: its turns carry the reason. Episodes that something other than the policy broke are left out likewise.
Rewards that can look at columns score a part at once; the others are asked episode by episode.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from rewards.scoring.asked import ByReward, scores_of
from rewards.scoring.joined import Joined, join
from rewards.scoring.table import (
    FROZEN,
    NO_VALUES,
    NOT_AN_LLM_TURN,
    RewardPart,
    reasons_of_turns,
    rewards_table,
)
from rewards.scoring.weighted import WeightedRewards
from workflows.errors import UsageError
from workflows.vocabulary import Status

Truncated = Literal["as_malformed", "exclude"]

NO_FAILURES: Final = frozenset({NOT_AN_LLM_TURN, FROZEN, NO_VALUES, Status.TRUNCATED, Status.CALLED_OFF})
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

    - all turns of an episode that is, or has a turn that is, `infra_error`, `timeout`, `cancelled` or
      `not_demonstrated`;
    - all turns of an episode on which a reward raised, or gave a number that is not finite or not one
      value per turn (`reasons.kind_of` takes the details off such a reason);
    - tool and control turns, and turns of models that are not trained;
    - truncated turns, if `truncated` is "exclude", and turns that their own team called off. The rest of such
      an episode is scored.

    `reward_parts` are before weights. Other columns than `TASKS_SEEN`, `TURNS_SEEN` and
    `EPISODES_SEEN` are not looked at.

    Raises:
        SchemaError: a turn's episode or an episode's task is missing, or two rows have one key.
    """
    check_truncated(truncated)
    joined = join(tasks, turns, episodes)
    return table_of(joined, rewards, truncated, scores_of(joined.part, [rewards]))


def check_truncated(truncated: str) -> None:
    """Refuse a rule for truncated turns that does not exist.

    Raises:
        UsageError: it is not one of `Truncated`.
    """
    if truncated not in get_args(Truncated):
        raise UsageError(f"truncated is {truncated!r}; use one of {', '.join(get_args(Truncated))}")


def table_of(joined: Joined, rewards: WeightedRewards, truncated: Truncated, scores: ByReward) -> pa.Table:
    """One row of `REWARDS` for each turn of a part, from what every reward gave."""
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
