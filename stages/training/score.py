"""The score pass of one rank: forward over its rows, no gradients, no change of state.

A part of the partition holds rows of one rank, and that rank scores it; the micro-batches are those of
the update, so that old logprobs are bit for bit what the update's first forward pass gives.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from stages.tables.parquet import Part, TableRef, TableSink
from stages.training.network.packing import COLUMNS, MicroBatch, problem_with, split
from stages.training.unit import Unit
from workflows.errors import RunFailed
from workflows.trajectory import SCORES, TURN_KEYS, rows_to_table


def run_score(
    unit: Unit, partition: TableRef, sink: TableSink, needs: frozenset[str], off_policy: bool = False
) -> dict[int, Part]:
    """Score and write the parts of this rank; by number. See `TrainerGroup.score`.

    Raises:
        RunFailed: rows of another version, or what is needed is not there (a critic, a reference).
    """
    if "values" in needs and unit.critic is None:
        raise RunFailed(f"the trainer of model {unit.spec.model_id!r} has no critic to take values from")
    parts = {}
    for index in range(len(partition.parts)):
        owners = partition.read_part(index, ["rank"])["rank"]
        # an empty part belongs to someone too; one of a rank that does not exist is refused by rank 0
        owner = owners[0].as_py() if len(owners) else index % unit.spec.ranks
        if owner == unit.rank or (unit.rank == 0 and not 0 <= owner < unit.spec.ranks):
            rows = partition.read_part(index, COLUMNS)
            parts[index] = sink.write_part(index, score_rows(unit, rows, partition.folder, needs, off_policy))
    return parts


def score_rows(
    unit: Unit, rows: pa.Table, where: str, needs: frozenset[str], off_policy: bool = False
) -> pa.Table:
    """The `SCORES` rows of partition rows, in their order. A row without a response gets empty lists."""
    spec = unit.spec
    # advantages come later, so a row without one is not a problem here
    at = rows.column_names.index("advantage")
    rows = rows.set_column(at, "advantage", pc.fill_null(rows["advantage"], 0.0))
    problem = problem_with(
        rows,
        model_id=spec.model_id,
        version=None if off_policy else unit.version,
        vocabulary=unit.vocabulary,
        ranks=spec.ranks,
        window=unit.window,
    )
    if problem:
        raise RunFailed(f"model {spec.model_id!r} can't score {where}: {problem}")
    scores: dict[tuple[str, int], dict[str, Any]] = {}
    with torch.no_grad():
        for batches in split(rows, spec.shared_prefix).values():
            for batch in batches:
                scores |= _score(unit, batch.to(unit.device), needs)
    columns = {"old": "old_logprobs", "reference": "reference_logprobs", "values": "values"}
    empty: dict[str, list[float]] = {columns[need]: [] for need in needs}
    scored = []
    for key in zip(*(rows[name].to_pylist() for name in TURN_KEYS), strict=True):
        scored.append(
            {
                **dict(zip(TURN_KEYS, key, strict=True)),
                "scored_version": unit.version,
                **scores.get(key, empty),
            }
        )
    return rows_to_table(scored, SCORES)


def _score(unit: Unit, batch: MicroBatch, needs: frozenset[str]) -> dict[tuple[str, int], dict[str, Any]]:
    tokens = {}
    if needs & {"old", "values"}:
        old, _, hidden = unit.policy(batch)
        if "old" in needs:
            tokens["old_logprobs"] = old
        if "values" in needs:
            assert unit.critic is not None
            tokens["values"] = unit.critic.values(batch, hidden)
    if "reference" in needs:
        tokens["reference_logprobs"] = unit.reference(batch)
    unit.count(batch)
    lists = {name: values.float().cpu() for name, values in tokens.items()}
    return {
        key: {name: values[batch.row.cpu() == index].tolist() for name, values in lists.items()}
        for index, key in enumerate(batch.keys)
    }
