"""What all ranks agree on before an update: which rows, in how many optimizer steps and forward passes.

Each rank reads its own rows only. The facts about them are gathered, so that every rank knows the token
count of each optimizer step, and makes as many backward calls as the rank with the most micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import torch.distributed as dist
from torch import Tensor

from stages.tables import TableRef
from stages.training.packing import COLUMNS, MicroBatch, empty_micro_batch, problem_with, split
from workflows.errors import RunFailed

if TYPE_CHECKING:
    from stages.training.worker import TrainWorker

NO_SIGNAL = "no signal: every advantage is zero"
NO_ROWS = "no rows with response tokens"


@dataclass(slots=True)
class MiniBatch:
    """One optimizer step of an epoch: this rank's micro-batches, and what all ranks have together."""

    index: int
    micro_batches: list[MicroBatch]
    num_rows: int
    num_tokens: int
    num_forward_tokens: int
    signal: bool  # any advantage other than zero
    old_logprobs: list[Tensor] = field(default_factory=list)  # empty: taken from the step's own forward

    @property
    def skipped(self) -> str | None:
        if not self.num_tokens:
            return NO_ROWS
        return None if self.signal else NO_SIGNAL


def plan_update(worker: TrainWorker, partition: TableRef) -> tuple[list[MiniBatch], int]:
    """This rank's rows as mini-batches that all ranks agree on, and how many rows have no response.

    Raises:
        RunFailed: on every rank, if any rank has rows that can't be trained on.
    """
    spec = worker.spec
    rows = _read_rows(partition, worker.rank, spec.ranks)
    problem = problem_with(
        rows,
        model_id=spec.model_id,
        version=worker.version,
        vocabulary=worker.vocabulary,
        ranks=spec.ranks,
    )
    mine = split(rows) if problem is None else {}
    empty = rows.num_rows - sum(len(b.keys) for batches in mine.values() for b in batches)
    facts = {
        index: {
            "micro_batches": len(batches),
            "num_rows": sum(len(b.keys) for b in batches),
            "num_tokens": sum(b.num_tokens for b in batches),
            "num_forward_tokens": sum(b.num_forward_tokens for b in batches),
            "signal": any(bool((b.advantages != 0).any()) for b in batches),
        }
        for index, batches in mine.items()
    }
    gathered: list[Any] = [None] * spec.ranks
    dist.all_gather_object(gathered, (problem, empty, facts))
    if problems := [p for p, _, _ in gathered if p]:
        raise RunFailed(f"model {spec.model_id!r} can't train on {partition.folder}: {problems[0]}")
    plan: list[MiniBatch] = []
    for index in sorted({i for _, _, f in gathered for i in f}):
        parts = [f[index] for _, _, f in gathered if index in f]
        batches = list(mine.get(index, []))
        while len(batches) < max(p["micro_batches"] for p in parts):
            batches.append(empty_micro_batch())
        plan.append(
            MiniBatch(
                index=len(plan),
                micro_batches=[b.to(worker.device) for b in batches],
                num_rows=sum(p["num_rows"] for p in parts),
                num_tokens=sum(p["num_tokens"] for p in parts),
                num_forward_tokens=sum(p["num_forward_tokens"] for p in parts),
                signal=any(p["signal"] for p in parts),
            )
        )
    return plan, sum(e for _, e, _ in gathered)


def _read_rows(partition: TableRef, rank: int, ranks: int) -> pa.Table:
    """The rows of this rank; rank 0 also reads those of ranks that do not exist, to refuse them."""
    tables = [pa.schema([partition.schema.field(c) for c in COLUMNS]).empty_table()]
    for index in range(len(partition.parts)):
        owner = partition.read_part(index, ["rank"])["rank"]
        wanted = pc.equal(owner, rank)
        if rank == 0:
            wanted = pc.or_(wanted, pc.or_(pc.less(owner, 0), pc.greater_equal(owner, ranks)))
        if pc.any(wanted).as_py():
            tables.append(partition.read_part(index, COLUMNS).filter(wanted))
    return pa.concat_tables(tables)
