"""Stop decisions in an update: rows of `stop_rows/<model>` as forward passes, and their loss.

A decision is two sequences that begin alike, its prompt with either option, so both stand in one tree of the
pass. Passes hold whole traces. They come after the passes over tokens, in the same optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor

from stages.tables.parquet import TableRef
from stages.training.loss.stopping import StopBatch, StopSums, stop_loss
from stages.training.network.packing import MicroBatch, empty_micro_batch, pack

if TYPE_CHECKING:
    from stages.training.unit import Unit


@dataclass(frozen=True, slots=True)
class StopPass:
    """One forward pass over the decisions of whole traces, in the order of their keys; (D,) tensors."""

    batch: MicroBatch  # two rows for each decision: stop, continue
    old_logits: Tensor
    utility: Tensor
    continued: Tensor
    weight: Tensor
    trace: Tensor
    ends: Tensor  # (num_traces,)

    @property
    def num_traces(self) -> int:
        return len(self.ends)

    @property
    def num_decisions(self) -> int:
        return int((self.weight > 0).sum())

    def to(self, device: torch.device | str) -> StopPass:
        return StopPass(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def empty_pass(packed: bool) -> StopPass:
    """A pass without a decision: a rank with fewer of them still runs forward and backward."""
    none = torch.zeros(0)
    return StopPass(empty_micro_batch(packed), none, none, none, none, none.long(), none)


def read_stops(
    unit: Unit, table: TableRef | None, off_policy: bool
) -> tuple[dict[int, list[StopPass]], str | None]:
    """This rank's passes by mini-batch, and why its rows can't be trained on, if so."""
    if table is None:
        return {}, None
    rows = [row for row in table.read().to_pylist() if row["rank"] == unit.rank]
    version = None if off_policy else unit.version
    for row in rows:
        if problem := _problem(row, unit.spec.model_id, version, unit.vocabulary):
            return {}, f"stop decision ({row['episode_id']}, {row['turn_index']}) {problem}"
    plan: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        plan.setdefault(row["mini_batch"], {}).setdefault(row["micro_batch"], []).append(row)
    packed = unit.spec.shared_prefix
    return {
        mini: [stop_pass(passes[micro], packed) for micro in sorted(passes)]
        for mini, passes in sorted(plan.items())
    }, None


def stop_facts(passes: Sequence[StopPass]) -> dict[str, int]:
    """What all ranks must know of one rank's passes in a mini-batch."""
    traces = sum(each.num_traces for each in passes if each.num_decisions)
    return {"stop_passes": len(passes), "num_traces": traces}


def stop_pass(decisions: Iterable[Mapping[str, Any]], packed: bool) -> StopPass:
    """One forward pass over rows of `STOP_ROWS`."""
    rows = sorted(decisions, key=lambda row: (row["episode_id"], row["turn_index"]))
    names = list(dict.fromkeys(row["episode_id"] for row in rows))
    ends = {row["episode_id"]: row["end_utility"] for row in rows}

    def numbers(values: Iterable[float | None]) -> Tensor:
        return torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float64)

    return StopPass(
        batch=pack(pa.Table.from_pylist(_sequences(rows)), packed),
        old_logits=numbers(row["stop_logprob"] - row["continue_logprob"] for row in rows),
        utility=numbers(row["utility"] for row in rows),
        continued=numbers(row["continue_value"] for row in rows),
        weight=numbers(row["weight"] for row in rows),
        trace=torch.tensor([names.index(row["episode_id"]) for row in rows]),
        ends=numbers(ends[name] for name in names),
    )


def _sequences(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Two rows of a partition for each decision, the stop first; keys keep them in this order."""
    return [
        {
            "episode_id": row["episode_id"],
            "turn_index": 2 * row["turn_index"] + place,
            "role": row["role"],
            "prompt_token_ids": row["prompt_token_ids"],
            "response_token_ids": row[option],
            "behaviour_logprobs": [0.0] * len(row[option]),
            "temperature": row["temperature"],
            "advantage": 0.0,
        }
        for row in rows
        for place, option in enumerate(("stop_token_ids", "continue_token_ids"))
    ]


def stop_sums(unit: Unit, stops: StopPass, new_logprobs: Tensor) -> StopSums:
    """The loss of one pass from the (N,) logprobs of its tokens."""
    if not stops.num_traces:
        nothing = torch.zeros((), dtype=torch.float64)
        return StopSums(new_logprobs.sum() * 0, nothing, nothing, 0, nothing)
    of_rows = torch.zeros(len(stops.batch.keys), dtype=torch.float64, device=new_logprobs.device)
    of_rows = of_rows.index_add(0, stops.batch.row, new_logprobs.double())  # [2 D]
    return stop_loss(
        unit.loss,
        StopBatch(
            stop_logprobs=of_rows[0::2],
            continue_logprobs=of_rows[1::2],
            old_logits=stops.old_logits,
            utility=stops.utility,
            continued=stops.continued,
            weight=stops.weight,
            trace=stops.trace,
            ends=stops.ends,
            num_traces=stops.num_traces,
        ),
    )


def _problem(row: Mapping[str, Any], model_id: str, version: int | None, vocabulary: int) -> str | None:
    if row["model_id"] != model_id:
        return f"is of model {row['model_id']!r}, not {model_id!r}"
    if version is not None and row["policy_version"] != version:
        return f"was taken by version {row['policy_version']}, but the trainer is at version {version}"
    if not row["temperature"] > 0:
        return f"was taken at temperature {row['temperature']}; training needs more than 0"
    ids = [*row["prompt_token_ids"], *row["stop_token_ids"], *row["continue_token_ids"]]
    if not all(0 <= i < vocabulary for i in ids):
        return f"holds a token id outside the model's vocabulary of {vocabulary}"
    if not row["prompt_token_ids"] or not row["stop_token_ids"] or not row["continue_token_ids"]:
        return "lacks the ids of its prompt or of an option"
    if row["weight"] > 0 and not math.isfinite(row["utility"]):
        return f"has the utility {row['utility']}"
    return None
