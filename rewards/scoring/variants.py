"""Several settings of rewards over the same turns, for ablations: rows are read and decoded once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rewards.scoring.asked import scores_of
from rewards.scoring.joined import join
from rewards.scoring.score import Truncated, check_truncated, table_of
from rewards.scoring.weighted import WeightedRewards


def score_variants(
    tasks: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    variants: Sequence[tuple[WeightedRewards, Truncated]],
) -> list[pa.Table]:
    """`score_turns` for several settings of rewards at once, a table each.

    A reward object that several variants have, under one name and for the same roles and steps, is called
    once for an episode.
    """
    for _, truncated in variants:
        check_truncated(truncated)
    joined = join(tasks, turns, episodes)
    scores = scores_of(joined.part, [rewards for rewards, _ in variants])
    return [table_of(joined, rewards, truncated, scores) for rewards, truncated in variants]
