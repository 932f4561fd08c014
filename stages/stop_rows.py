"""turns, stops → stop_rows/<model>: the decisions that each model learns from, in forward passes; no GPU.

Decisions of one trace are in one pass, so that its loss sees the trace whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.partition import PartitionSpec
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.playing.decision import OPTIONS, detail_of
from workflows.stop_tables import STOP_ROWS, STOPS
from workflows.trajectory import TURN_KEYS, TURNS, rows_to_table, seed_for

_TURNS: Final = (*TURN_KEYS, "prompt_token_ids", "act_detail", "sampling")
_STOPS: Final = (
    *("episode_id", "turn_index", "decision", "role", "model_id", "policy_version", "stop_logprob"),
    *("continue_logprob", "utility", "continue_value", "weight"),
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StopRowsStage:
    """Write `stop_rows/<model_id>` for each model that learns when to stop."""

    models: tuple[PartitionSpec, ...]

    name: str = "stop_rows"
    folder: str = "stop_rows"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {
            "turns": pa.schema([TURNS.field(name) for name in _TURNS]),
            "stops": pa.schema([STOPS.field(name) for name in _STOPS]),
        }

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {f"stop_rows/{spec.model_id}": STOP_ROWS for spec in self.models}

    @property
    def places(self) -> dict[str, str]:
        return {f"stop_rows/{spec.model_id}": spec.model_id for spec in self.models}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        rows: list[Row] = []
        points = 0
        for index in aligned_parts({name: inputs[name] for name in self.inputs}):
            stops = inputs["stops"].read_part(index, list(_STOPS)).to_pylist()
            points += sum(stop["weight"] > 0 for stop in stops)
            rows += decision_rows(inputs["turns"].read_part(index, list(_TURNS)).to_pylist(), stops)
        result = StageResult({})
        for spec in self.models:
            mine = planned([row for row in rows if row["model_id"] == spec.model_id], spec)
            name = f"stop_rows/{spec.model_id}"
            result.parts[name] = [outputs[name].write_part(0, rows_to_table(mine, STOP_ROWS))]
            result.metrics[f"rows/{spec.model_id}"] = float(len(mine))
            if not mine:
                result.notes.append(f"model {spec.model_id!r} has no stop decision to learn from")
        written = sum(part.rows for parts in result.parts.values() for part in parts)
        left = {"model is not trained": points - written} if points > written else {}
        result.accounts.append(Account("stops to stop_rows", "decision", points, written, left))
        return result


def decision_rows(turns: Sequence[Row], stops: Sequence[Row]) -> list[Row]:
    """The decisions of a part that have a weight, with the ids that they were taken on."""
    of_turn = {(turn["episode_id"], turn["turn_index"]): turn for turn in turns}
    ends: dict[str, float] = {}
    for stop in sorted(stops, key=lambda s: int(s["decision"])):
        if stop["utility"] is not None:
            ends[stop["episode_id"]] = stop["utility"]  # the last one of the trace stays
    rows = []
    for stop in stops:
        if not stop["weight"] > 0:
            continue
        turn = of_turn[stop["episode_id"], stop["turn_index"]]
        stop_ids, continue_ids = detail_of(turn)[OPTIONS]
        rows.append(
            {
                **{name: stop[name] for name in _STOPS if name != "decision"},
                "prompt_token_ids": turn["prompt_token_ids"],
                "stop_token_ids": stop_ids,
                "continue_token_ids": continue_ids,
                "temperature": _temperature(turn["sampling"]),
                "end_utility": ends[stop["episode_id"]],
            }
        )
    return rows


def _temperature(sampling: str) -> float:
    return float(json.loads(sampling)["temperature"])


def planned(rows: Sequence[Row], spec: PartitionSpec) -> list[Row]:
    """The rows with their rank, mini-batch and forward pass: whole traces, in a seeded order.

    A trace that has more tokens than a pass takes has one of its own.
    """
    traces: dict[str, list[Row]] = {}
    for row in rows:
        traces.setdefault(row["episode_id"], []).append(row)
    names = sorted(traces, key=lambda name: (seed_for(spec.seed, "stops", name), name))
    number = min(spec.mini_batches, len(names))
    placed: list[Row] = []
    for mini_batch in range(number):
        mine = names[len(names) * mini_batch // number : len(names) * (mini_batch + 1) // number]
        loads = [0] * spec.ranks
        filled = [(0, 0)] * spec.ranks  # by rank: the forward pass, and its tokens
        for name in sorted(mine, key=lambda name: -_tokens(traces[name])):  # stable: ties stay shuffled
            rank = loads.index(min(loads))
            size = _tokens(traces[name])
            loads[rank] += size
            micro_batch, tokens = filled[rank]
            if tokens and tokens + size > spec.micro_batch_tokens:
                micro_batch, tokens = micro_batch + 1, 0
            filled[rank] = (micro_batch, tokens + size)
            place = {"rank": rank, "mini_batch": mini_batch, "micro_batch": micro_batch}
            placed += [{**row, **place} for row in traces[name]]
    return sorted(
        placed, key=lambda r: (r["rank"], r["mini_batch"], r["micro_batch"], r["episode_id"], r["turn_index"])
    )


def _tokens(rows: Sequence[Row]) -> int:
    """What a trace adds to a pass, its prompts once."""
    lists = ("prompt_token_ids", "stop_token_ids", "continue_token_ids")
    return sum(len(row[name]) for row in rows for name in lists)
