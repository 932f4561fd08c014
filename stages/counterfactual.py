"""base_turns, base_episodes → turns, episodes, played_interventions: stored episodes played otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.base import BASE, Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.players.actor import play_counterfactuals
from stages.players.choices import Choosing
from stages.players.counterfactuals import Job
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from stages.waiting import LIMITS
from workflows.interventions import PLAYED_INTERVENTIONS
from workflows.trajectory import EPISODES, TASKS, TURNS


@dataclass(frozen=True, slots=True)
class CounterfactualStage:
    """Choose stored replies, and play their episodes as if they had been others.

    The plays are never among the turns of an iteration, and nothing trains on them. Their parts are those of
    the tasks. Of the same tables, settings and weights a run of this stage gives the same plays.

    Args:
        choosing: which interventions; its tokens are those of the whole table.
        stall_seconds: in which a player gives no sign of life.
    """

    choosing: Choosing
    stall_seconds: float = LIMITS.player_call_seconds

    name: str = "counterfactual"
    folder: str = "counterfactual"
    lease: Lease = "engine"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS, f"{BASE}turns": TURNS, f"{BASE}episodes": EPISODES}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"turns": TURNS, "episodes": EPISODES, "played_interventions": PLAYED_INTERVENTIONS}

    @property
    def places(self) -> dict[str, str]:
        return {name: name for name in self.outputs}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tasks, turns, episodes = (inputs[name] for name in self.inputs)
        indices = aligned_parts(inputs)
        choosing = self.choosing.of_parts(len(indices))
        jobs = [Job(k, tasks, turns, episodes, outputs, choosing) for k in indices]
        players = context.fleet.players()
        stall = self.stall_seconds

        def play_one(index: int) -> dict[str, Any]:
            return play_counterfactuals(players[index % len(players)], jobs[index], stall)

        context.progress.start("counterfactual", len(indices), "part")
        receipts = map_parts(
            play_one,
            indices,
            num_cpus=0.01,
            retries=0,
            concurrency=min(8, len(indices)),
            on_done=lambda done: context.progress.advance(tokens=done["tokens"]),
        )
        context.progress.finish()
        return _result(receipts)


def _result(receipts: Sequence[Mapping[str, Any]]) -> StageResult:
    tables = ("turns", "episodes", "played_interventions")
    parts = {table: [receipt["parts"][table] for receipt in receipts] for table in tables}
    total = {
        name: sum(receipt[name] for receipt in receipts)
        for name in ("chosen", "episodes", "tokens", "failed", "unequal")
    }
    skipped: dict[str, int] = {}
    for receipt in receipts:
        for reason, count in receipt["skipped"].items():
            skipped[reason] = skipped.get(reason, 0) + count
    played = total["chosen"] - sum(skipped.values())
    notes = []
    if total["unequal"]:
        notes.append(
            f"{total['unequal']} episodes are other ones when they are replayed as they are: their workflow "
            "or a tool depends on more than the replies, so nothing is replaced in them"
        )
    if total["failed"]:
        notes.append(f"{total['failed']} plays failed, so that they have no return")
    account = Account("counterfactual", "intervention", total["chosen"], played, skipped)
    metrics = {name: float(value) for name, value in total.items()} | {"played": float(played)}
    return StageResult(parts, [account], metrics, notes)
