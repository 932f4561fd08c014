"""tasks, turns, episodes → probe_turns, probe_episodes, played_probes; their rewards → probe_rewards.

What each stop decision of an iteration would have come to otherwise. The plays lie in tables of their own:
nothing counts them among the iteration's episodes or tokens, and nothing trains on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from stages.base import Context, StageResult
from stages.lease import Lease
from stages.played_parts import play_parts
from stages.players.actor import play_part_of_probes
from stages.players.probes import ProbeJob
from stages.reward import RewardStage
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from stages.waiting import LIMITS
from workflows.stop_tables import PLAYED_PROBES
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS

_PREFIX: Final = "probe_"
_TABLES: Final = ("probe_turns", "probe_episodes", "played_probes")


@dataclass(frozen=True, slots=True)
class ProbeStage:
    """Play every decision to go on with a stop, `samples` times; a share `epsilon` of stops goes on."""

    samples: int
    epsilon: float
    seed: int
    stall_seconds: float = LIMITS.player_call_seconds

    name: str = "probe"
    folder: str = "probes"
    lease: Lease = "engine"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"probe_turns": TURNS, "probe_episodes": EPISODES, "played_probes": PLAYED_PROBES}

    @property
    def places(self) -> dict[str, str]:
        return {"probe_turns": "turns", "probe_episodes": "episodes", "played_probes": "played"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        indices = aligned_parts({name: inputs[name] for name in self.inputs})
        tasks, turns, episodes = (inputs[name] for name in self.inputs)
        jobs = {
            k: ProbeJob(k, tasks, turns, episodes, outputs, self.samples, self.epsilon, self.seed)
            for k in indices
        }
        receipts = play_parts(context, "probe", jobs, play_part_of_probes, self.stall_seconds)
        names = ("probes", "tokens", "failed", "differ")
        total = {name: sum(receipt[name] for receipt in receipts) for name in names}
        parts = {name: [receipt["parts"][name] for receipt in receipts] for name in _TABLES}
        notes = []
        if total["differ"]:
            notes.append(
                f"{total['differ']} probes have no score: their workflow or a tool depends on more than the "
                "replies, so their episode could not be played again up to the decision"
            )
        if total["failed"]:
            notes.append(f"{total['failed']} probes failed, so that they have no score")
        return StageResult(parts, [], {name: float(value) for name, value in total.items()}, notes)


@dataclass(frozen=True, slots=True)
class ProbeRewardStage:
    """Score the probes as the iteration's own episodes are scored."""

    reward: RewardStage

    name: str = "probe_reward"
    folder: str = "probe_rewards"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "probe_turns": TURNS_SEEN, "probe_episodes": EPISODES_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"probe_rewards": REWARDS}

    @property
    def places(self) -> dict[str, str]:
        return {"probe_rewards": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        result = self.reward.run(_without_prefix(inputs), _without_prefix(outputs), context)
        return replace(
            result,
            parts={_PREFIX + name: parts for name, parts in result.parts.items()},
            accounts=[replace(account, boundary=f"probe {account.boundary}") for account in result.accounts],
            notes=[f"probes: {note}" for note in result.notes if "can't tell good from bad" not in note],
        )


def _without_prefix(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): table for name, table in tables.items()}
