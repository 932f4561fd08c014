"""base_turns, base_episodes → turns, episodes, played_interventions: stored episodes played otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from stages.base import BASE, Account, Context, StageResult
from stages.lease import Lease
from stages.played_parts import play_parts
from stages.players.actor import play_counterfactuals
from stages.players.choices import Choosing
from stages.players.counterfactuals import Job
from stages.players.shards import SHARDS, receipt_uri
from stages.tables.parquet import Part, TableRef, TableSink, aligned_parts
from stages.waiting import LIMITS
from workflows.credit_tables import MESSAGES
from workflows.interventions import PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS
from workflows.vocabulary import Op

PLAYED: Final = "counterfactual_"  # what begins the names of the tables of plays within an iteration


@dataclass(frozen=True, slots=True)
class CounterfactualStage:
    """Choose stored replies, and play their episodes as if they had been others.

    The plays are never among the turns of an iteration, and nothing trains on them. Their parts are those of
    the tasks. Of the same tables, settings and weights a run of this stage gives the same plays. A part that
    was played before a kill is not played again.

    Args:
        choosing: which interventions; its tokens are those of the whole table.
        stall_seconds: in which a player gives no sign of life.
        within: the stage is part of an iteration, whose own turns and rewards it reads: it chooses messages
            by what their replays may teach (`stages.players.selection`), and writes table `messages`.
        explore: share of the tokens that is spread evenly over all messages.
    """

    choosing: Choosing
    stall_seconds: float = LIMITS.player_call_seconds
    within: bool = False
    explore: float = 1.0

    name: str = "counterfactual"
    folder: str = "counterfactual"
    lease: Lease = "engine"
    resumable: bool = True  # parts that have a receipt are kept after a kill

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        if self.within:
            return {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES, "rewards": REWARDS}
        return {"tasks": TASKS, f"{BASE}turns": TURNS, f"{BASE}episodes": EPISODES}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        prefix = PLAYED if self.within else ""
        plays = {f"{prefix}turns": TURNS, f"{prefix}episodes": EPISODES}
        games = {"played_coalitions": PLAYED_COALITIONS} if Op.SHAPLEY in self.choosing.ops else {}
        messages = {"messages": MESSAGES} if self.within else {}
        return {**plays, "played_interventions": PLAYED_INTERVENTIONS, **games, **messages}

    @property
    def places(self) -> dict[str, str]:
        return {name: name.removeprefix(PLAYED) for name in self.outputs}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        tasks, turns, episodes, *_ = tables.values()
        indices = aligned_parts(tables)
        choosing = self.choosing.of_parts(len(indices))
        sinks = {name.removeprefix(PLAYED): sink for name, sink in outputs.items() if name in self.outputs}
        receipts_folder = sinks["turns"].folder.rsplit("/", 1)[0] + f"/{SHARDS}"
        jobs = {
            k: Job(
                *(k, tasks, turns, episodes, sinks, choosing, receipt_uri(receipts_folder, k)),
                rewards=tables.get("rewards"),
                explore=self.explore,
            )
            for k in indices
        }
        receipts = play_parts(context, "counterfactual", jobs, play_counterfactuals, self.stall_seconds)
        return _result(receipts, list(self.outputs))


def _result(receipts: Sequence[Mapping[str, Any]], tables: Sequence[str]) -> StageResult:
    parts = {
        table: [Part(**receipt["parts"][table.removeprefix(PLAYED)]) for receipt in receipts]
        for table in tables
    }
    total = {
        name: sum(receipt[name] for receipt in receipts)
        for name in ("chosen", "episodes", "tokens", "failed", "unequal", "stored_tokens")
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
    if "played_coalitions" in parts and not sum(part.rows for part in parts["played_coalitions"]):
        notes.append("no set of inputs was played: no chosen reply reads two others or more")
    account = Account("counterfactual", "intervention", total["chosen"], played, skipped)
    metrics = {name: float(value) for name, value in total.items()} | {"played": float(played)}
    return StageResult(parts, [account], metrics, notes)
