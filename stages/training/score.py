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
    unit: Unit,
    partition: TableRef,
    sink: TableSink,
    needs: frozenset[str],
    off_policy: bool = False,
    bootstrap: frozenset[tuple[str, int]] = frozenset(),
) -> dict[int, Part]:
    """Score and write the parts of this rank; by number. See `TrainerGroup.score`.

    Raises:
        RunFailed: rows of another version, or what is needed is not there (a critic, a reference).
    """
    if (bootstrap or "values" in needs) and unit.critic is None:
        raise RunFailed(f"the trainer of model {unit.spec.model_id!r} has no critic to take values from")
    parts = {}
    for index in range(len(partition.parts)):
        owners = partition.read_part(index, ["rank"])["rank"]
        # an empty part belongs to someone too; one of a rank that does not exist is refused by rank 0
        owner = owners[0].as_py() if len(owners) else index % unit.spec.ranks
        if owner == unit.rank or (unit.rank == 0 and not 0 <= owner < unit.spec.ranks):
            rows = partition.read_part(index, COLUMNS)
            scores = score_rows(unit, rows, partition.folder, needs, off_policy, bootstrap)
            parts[index] = sink.write_part(index, scores)
    return parts


def score_rows(
    unit: Unit,
    rows: pa.Table,
    where: str,
    needs: frozenset[str],
    off_policy: bool = False,
    bootstrap: frozenset[tuple[str, int]] = frozenset(),
) -> pa.Table:
    """The `SCORES` rows of partition rows, in their order. A row without a response gets empty lists.

    Rows whose keys are in `bootstrap` also get the value of the state after their last token.
    """
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
        after = _values_after(unit, rows, bootstrap)
    columns = {"old": "old_logprobs", "reference": "reference_logprobs", "values": "values"}
    empty: dict[str, list[float]] = {columns[need]: [] for need in needs if need in columns}
    scored = []
    for key in zip(*(rows[name].to_pylist() for name in TURN_KEYS), strict=True):
        scored.append(
            {
                **dict(zip(TURN_KEYS, key, strict=True)),
                "scored_version": unit.version,
                **scores.get(key, empty),
                "bootstrap_value": after.get(key),
            }
        )
    return rows_to_table(scored, SCORES)


def _values_after(
    unit: Unit, rows: pa.Table, keys: frozenset[tuple[str, int]]
) -> dict[tuple[str, int], float]:
    """The value after the last token of these rows, by key, of passes of their own.

    The state after the last token predicts a token that was never sampled: a filler stands for it, which no
    token sees.
    """
    cut = [row for row in rows.to_pylist() if (row["episode_id"], row["turn_index"]) in keys]
    cut = [row for row in cut if row["response_token_ids"]]
    if not cut:
        return {}
    assert unit.critic is not None, "a plan that bootstraps has a critic"
    longer = [
        row
        | {
            "response_token_ids": [*row["response_token_ids"], row["response_token_ids"][-1]],
            "behaviour_logprobs": [*row["behaviour_logprobs"], 0.0],
        }
        for row in cut
    ]
    values: dict[tuple[str, int], float] = {}
    for batches in split(pa.Table.from_pylist(longer, rows.schema), unit.spec.shared_prefix).values():
        for batch in batches:
            batch = batch.to(unit.device)
            _, _, hidden = unit.policy(batch)
            found = unit.critic.values(batch, hidden).float().cpu()
            row_of = batch.row.cpu()
            values |= {key: float(found[row_of == index][-1]) for index, key in enumerate(batch.keys)}
    return values


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
