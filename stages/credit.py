"""turns, episodes, rewards → credit: return and advantage of every turn; no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rewards.base import Credit
from rewards.credit.assign import EPISODES_SEEN, REWARDS_SEEN, TURNS_SEEN, assign_credit, group_metrics
from rewards.scoring import kind_of
from stages.base import Account, Context, Lease, StageResult, map_parts
from stages.tables import TableRef, TableSink, aligned_parts
from workflows.trajectory import CREDIT


@dataclass(frozen=True, slots=True)
class CreditStage:
    """Credit every turn that has a reward, whole groups at a time: a part holds whole groups."""

    method: Credit

    name: str = "credit"
    folder: str = "credit"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"turns": TURNS_SEEN, "episodes": EPISODES_SEEN, "rewards": REWARDS_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"credit": CREDIT}

    @property
    def places(self) -> dict[str, str]:
        return {"credit": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        context.progress.start("credit", len(indices), "part")
        receipts = map_parts(
            credit_part,
            indices,
            on_done=lambda _: context.progress.advance(),
            tables=tables,
            sink=outputs["credit"],
            method=self.method,
        )
        context.progress.finish()
        return _result(receipts)


def credit_part(
    index: int, tables: Mapping[str, TableRef], sink: TableSink, method: Credit
) -> dict[str, Any]:
    """Credit part `index` and write it; the receipt has its part and counts."""
    turns, episodes, rewards = (
        tables[name].read_part(index, schema.names)
        for name, schema in (("turns", TURNS_SEEN), ("episodes", EPISODES_SEEN), ("rewards", REWARDS_SEEN))
    )
    credit = assign_credit(turns, episodes, rewards, method)
    keys: Sequence[str] = getattr(method, "group_keys", ("group_id",))
    return {
        "part": sink.write_part(index, credit),
        "turns": credit.num_rows,
        "excluded": Counter(kind_of(r) for r in credit["excluded"].to_pylist() if r is not None),
        "groups": Counter(group_metrics(turns, episodes, rewards, credit, keys)),
    }


def _result(receipts: Sequence[Mapping[str, Any]]) -> StageResult:
    excluded: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    for receipt in receipts:
        excluded.update(receipt["excluded"])
        groups.update(receipt["groups"])
    turns = sum(r["turns"] for r in receipts)
    metrics: dict[str, float] = {
        name: groups[name] for name in ("groups", "groups_without_signal", "groups_of_one_episode")
    }
    notes = []
    if alone := groups["groups_of_one_episode"]:
        notes.append(f"{alone} of {groups['groups']} groups have one usable episode: advantage 0")
    if groups["groups"] and groups["groups_without_signal"] == groups["groups"]:
        notes.append(f"no signal: every advantage of all {groups['groups']} groups is 0")
    account = Account(
        "rewards to credit", "turn", turns, turns - excluded.total(), dict(sorted(excluded.items()))
    )
    return StageResult({"credit": [r["part"] for r in receipts]}, [account], metrics, notes)
