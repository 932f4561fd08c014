"""tasks, turns, episodes → rewards: per turn, every part kept; no GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rewards.base import RewardHooks
from rewards.part import Flags, Numbers, Rows
from rewards.scoring.by_columns import has_columns
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from rewards.scoring.key_order import key_order
from rewards.scoring.opened import opened
from rewards.scoring.reasons import count_kinds
from rewards.scoring.score import Truncated, score_turns
from rewards.scoring.weighted import WeightedRewards
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import Part, TableRef, TableSink, aligned_parts
from workflows.hooks import hooks_of
from workflows.trajectory import REWARDS, TURN_KEYS

FAILURES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class RewardStage:
    """Score every episode, part by part. See `rewards.scoring.score.score_turns` for who gets no reward."""

    rewards: WeightedRewards
    truncated: Truncated = "as_malformed"

    name: str = "reward"
    folder: str = "rewards"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": EPISODES_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"rewards": REWARDS}

    @property
    def places(self) -> dict[str, str]:
        return {"rewards": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        context.progress.start("reward", len(indices), "part")
        with opened([self.rewards]) as (rewards,):
            receipts = map_parts(
                score_part,
                indices,
                brief=are_brief(rewards),
                on_done=lambda done: context.progress.advance(turns=done["turns"]),
                tables=tables,
                sink=outputs["rewards"],
                rewards=rewards,
                truncated=self.truncated,
            )
        context.progress.finish()
        return reward_result(receipts)


def are_brief(rewards: WeightedRewards) -> bool:
    """Whether all rewards score a part at once, which takes less time than a task of the cluster."""
    return all(
        has_columns(item.reward) and not hooks_of(item.reward, RewardHooks).takes_long
        for item in rewards.items
    )


def read_played(tables: Mapping[str, TableRef], index: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Part `index` of tasks, turns and episodes, with the columns that rewards see."""
    seen = {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": EPISODES_SEEN}
    tasks, turns, episodes = (tables[name].read_part(index, schema.names) for name, schema in seen.items())
    return tasks, turns, episodes


def score_part(
    index: int,
    tables: Mapping[str, TableRef],
    sink: TableSink,
    rewards: WeightedRewards,
    truncated: Truncated = "as_malformed",
) -> dict[str, Any]:
    """Score part `index` and write it: the receipt of `write_rewards`."""
    tasks, turns, episodes = read_played(tables, index)
    scored = score_turns(tasks, turns, episodes, rewards, truncated=truncated)
    return write_rewards(index, scored, sink, turns)


def write_rewards(index: int, scored: pa.Table, sink: TableSink, turns: pa.Table) -> dict[str, Any]:
    """Write the rewards of part `index`; the receipt has its part, counts and sums, for `reward_result`."""
    excluded, failures = count_kinds(scored["no_reward_reason"])
    return {
        "part": sink.write_part(index, scored),
        "turns": scored.num_rows,
        "excluded": excluded,
        "failures": failures[:FAILURES_SHOWN],
        "means": episode_means(scored, turns),
    }


class Means(NamedTuple):
    """Over episodes: the sum of their means, their number, the lowest and the highest."""

    total: float
    episodes: int
    low: float
    high: float

    def merge(self, other: Means) -> Means:
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Means(self.total + other.total, self.episodes + other.episodes, low, high)


def episode_means(rewards: pa.Table, turns: pa.Table) -> dict[str, Means]:
    """By metric name: the means of a part's episodes. `rewards` is sorted by key, a row for each turn.

    An episode counts once whatever its number of turns, so that a workflow with more turns compares
    with one that has fewer.
    """
    episode = _codes(rewards["episode_id"].combine_chunks())[0]
    reward, rewarded = _numbers(rewards["reward"].combine_chunks())
    found = {"reward": _means(episode[rewarded], reward[rewarded])}

    named = rewards["reward_parts"].combine_chunks()
    of_turn = pc.list_parent_indices(named).to_numpy()
    name, value = named.flatten().flatten()
    values, given = _numbers(value)
    for text, where in _each(name):
        rows = where & given & rewarded[of_turn]
        found[f"reward/part/{text}"] = _means(episode[of_turn[rows]], values[rows])

    who = turns.select([*TURN_KEYS, "role", "model_id"])
    order = key_order(pl.DataFrame(who.select(TURN_KEYS)))
    for column, kind in (("role", "role"), ("model_id", "model")):
        for text, where in _each(who[column].combine_chunks()):
            rows = (where if order is None else where[order]) & rewarded
            found[f"reward/{kind}/{text}"] = _means(episode[rows], reward[rows])
    return {name: means for name, means in sorted(found.items()) if means.episodes}


def _means(episode: Rows, values: Numbers) -> Means:
    """Of values and the episode of each."""
    if not len(values):
        return Means(0.0, 0, math.inf, -math.inf)
    times, sums = np.bincount(episode), np.bincount(episode, weights=values)
    means = sums[times > 0] / times[times > 0]
    return Means(math.fsum(means), len(means), float(means.min()), float(means.max()))


def _numbers(column: pa.Array) -> tuple[Numbers, Flags]:
    """Values, and where there are any."""
    return pc.fill_null(column, 0.0).to_numpy(), pc.is_valid(column).to_numpy(zero_copy_only=False)


def _codes(column: pa.Array) -> tuple[Rows, list[Any]]:
    """For each row the position of its text among the different ones; null has none, -1."""
    encoded = column.dictionary_encode()
    return pc.fill_null(encoded.indices, -1).to_numpy(), encoded.dictionary.to_pylist()


def _each(column: pa.Array) -> Iterator[tuple[str, Flags]]:
    """Each text of a column, and where it stands."""
    codes, texts = _codes(column)
    for code, text in enumerate(texts):
        yield text, codes == code


def reward_result(receipts: Sequence[Mapping[str, Any]]) -> StageResult:
    """The stage's result from the receipts of all parts."""
    parts: list[Part] = [r["part"] for r in receipts]
    excluded: Counter[str] = Counter()
    for receipt in receipts:
        excluded.update(receipt["excluded"])
    turns = sum(r["turns"] for r in receipts)
    rewarded = turns - excluded.total()
    means: dict[str, Means] = {}
    for receipt in receipts:
        for name, of_part in receipt["means"].items():
            means[name] = means[name].merge(of_part) if name in means else of_part
    metrics: dict[str, float] = {"rewarded_turns": rewarded, "turns_without_reward": excluded.total()}
    notes = [f"excluded, {failure}" for r in receipts for failure in r["failures"]][:FAILURES_SHOWN]
    for name, (total, episodes, low, high) in sorted(means.items()):
        metrics[name] = total / episodes
        if episodes > 1 and low == high and name.startswith("reward/part/"):
            notes.append(
                f"reward {name.removeprefix('reward/part/')!r} is {low:g} for all {episodes} episodes: "
                "it can't tell good from bad here"
            )
    account = Account("turns to rewards", "turn", turns, rewarded, dict(sorted(excluded.items())))
    return StageResult({"rewards": parts}, [account], metrics, notes)
