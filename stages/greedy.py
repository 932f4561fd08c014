"""One more play of every task at temperature 0, and its rewards: what ReMax compares sampled plays with.

These plays lie in tables of their own, so nothing that counts, shows or trains on an iteration's episodes
sees them. They are accounted and committed shard by shard like the rollout, and have keys beside its keys:
the sample after the last one of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from stages.base import Context, StageResult
from stages.lease import Lease
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.tables.parquet import TableRef, TableSink
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS

GREEDY: Final = "greedy"  # what players that sample at temperature 0 play for
_PREFIX: Final = "greedy_"


def greedy_rollout(rollout: RolloutStage) -> GreedyStage:
    """The greedy plays beside those of a rollout."""
    return GreedyStage(replace(rollout, group_size=1, first_sample=rollout.group_size, purpose=GREEDY))


@dataclass(frozen=True, slots=True)
class GreedyStage:
    """Play every task once, greedily: a rollout whose tables have names of their own."""

    rollout: RolloutStage

    name: str = "greedy"
    folder: str = "greedy"
    lease: Lease = "engine"
    resumable: bool = True

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"greedy_turns": TURNS, "greedy_episodes": EPISODES}

    @property
    def places(self) -> dict[str, str]:
        return {"greedy_turns": "turns", "greedy_episodes": "episodes"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        return _renamed(self.rollout.run(inputs, _without_prefix(outputs), context))


@dataclass(frozen=True, slots=True)
class GreedyRewardStage:
    """Score the greedy plays as the sampled ones are scored."""

    reward: RewardStage

    name: str = "greedy_reward"
    folder: str = "greedy_rewards"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "greedy_turns": TURNS_SEEN, "greedy_episodes": EPISODES_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"greedy_rewards": REWARDS}

    @property
    def places(self) -> dict[str, str]:
        return {"greedy_rewards": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        return _renamed(self.reward.run(_without_prefix(inputs), _without_prefix(outputs), context))


def _without_prefix(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): table for name, table in tables.items()}


def _renamed(result: StageResult) -> StageResult:
    """The result of the stage inside, with the names of greedy tables and boundaries."""
    return replace(
        result,
        parts={_PREFIX + name: parts for name, parts in result.parts.items()},
        accounts=[replace(account, boundary=f"greedy {account.boundary}") for account in result.accounts],
        notes=[f"greedy plays: {note}" for note in result.notes],
    )
