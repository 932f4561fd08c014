"""The rewards of several variants in one pass: turns are read once, equal rewards are computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewards.scoring.opened import opened
from rewards.scoring.score import Truncated
from rewards.scoring.variants import score_variants
from rewards.scoring.weighted import WeightedRewards
from stages.base import Progress, StageResult
from stages.parts import map_parts
from stages.reward import are_brief, read_played, reward_result, write_rewards
from stages.tables.parquet import TableRef, TableSink, aligned_parts

Variant = tuple[WeightedRewards, Truncated]


def score_together(
    tables: Mapping[str, TableRef],
    sinks: Sequence[TableSink],
    variants: Sequence[Variant],
    progress: Progress,
) -> list[StageResult]:
    """What the reward stage does, for each of several variants that see the same turns.

    A reward that several of them have, as one object, is computed once.
    """
    indices = aligned_parts(tables)
    progress.start("reward", len(indices), "part")
    with opened([rewards for rewards, _ in variants]) as lists:
        receipts = map_parts(
            score_part,
            indices,
            brief=all(are_brief(rewards) for rewards, _ in variants),
            on_done=lambda done: progress.advance(turns=done["variants"][0]["turns"]),
            tables=tables,
            sinks=sinks,
            variants=[(rewards, rule) for rewards, (_, rule) in zip(lists, variants, strict=True)],
        )
    progress.finish()
    return [reward_result([receipt["variants"][k] for receipt in receipts]) for k in range(len(variants))]


def score_part(
    index: int, tables: Mapping[str, TableRef], sinks: Sequence[TableSink], variants: Sequence[Variant]
) -> dict[str, Any]:
    """Score part `index` and write it; the receipt has its part, counts and sums, for each variant."""
    tasks, turns, episodes = read_played(tables, index)
    scored = score_variants(tasks, turns, episodes, variants)
    return {"variants": [write_rewards(index, *each, turns) for each in zip(scored, sinks, strict=True)]}
