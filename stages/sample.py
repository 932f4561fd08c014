"""tasks: this iteration's slice of a seeded permutation of the split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.tables.parquet import TableRef, TableSink
from workflows.data.tasks import choose
from workflows.trajectory import TASKS


@dataclass(frozen=True, slots=True)
class SampleStage:
    """Choose `tasks_per_iteration` tasks and write them in parts of `tasks_per_shard`.

    These parts set the part numbers of the whole iteration: part `k` of every later table, up to
    credit, holds the groups of part `k` here. Iteration `i` takes slice `i`, so a resumed run
    sees the tasks of an unbroken one. A block of an iteration takes its part of that slice, by `offset`.
    With `always_first` every iteration takes slice 0: the same
    tasks each time, for an evaluation or to see whether a team can learn one group by heart.
    """

    tasks: pa.Table
    split: str
    seed: int
    tasks_per_iteration: int
    tasks_per_shard: int
    always_first: bool = False
    offset: int = 0  # tasks of the iteration's slice that come before these
    stride: int | None = None  # tasks from one iteration's slice to the next; None: tasks_per_iteration
    remarks: tuple[str, ...] = ()  # about the data, for every summary: rows that are not used

    name: str = "sample"
    folder: str = "tasks"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS}

    @property
    def places(self) -> dict[str, str]:
        return {"tasks": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        count = self.tasks_per_iteration
        stride = count if self.stride is None else self.stride
        start = (0 if self.always_first else context.iteration * stride) + self.offset
        chosen = choose(self.tasks, self.split, self.seed, start, count)
        size = self.tasks_per_shard
        parts = [
            outputs["tasks"].write_part(k, chosen.slice(start, size))
            for k, start in enumerate(range(0, chosen.num_rows, size))
        ]
        account = Account("sample", "task", count, sum(p.rows for p in parts))
        metrics: dict[str, Any] = {"tasks": chosen.num_rows}
        return StageResult({"tasks": parts}, [account], metrics, list(self.remarks))
