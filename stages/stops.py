"""turns, episodes, rewards, probes and their rewards → stops, probes, stop_curve, stop_price; no GPU.

What every decision point of an iteration scored and cost, and what going on was worth; how the policy's stops
compare with rules on the same traces; and the price of a unit of cost, which a budget steers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.stopping.measures import best_fixed, calibration, measures, returned
from rewards.stopping.rules import Ruled, ruled
from rewards.stopping.table import TURNS_SEEN, StopSpec, returns_of, stop_tables, traces_of
from rewards.stopping.traces import Traces
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.stop_tables import PLAYED_PROBES, PROBES, STOP_CURVE, STOP_PRICE, STOPS
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table

_EPISODES: Final = ("iteration", "block", "task_id", "group_id", "episode_id", "status")
_SEEN: Final = pa.schema([TURNS.field(name) for name in TURNS_SEEN])
_REWARDS: Final = pa.schema([REWARDS.field(name) for name in ("episode_id", "turn_index", "reward")])
_CURVE: Final = ("episode_id", "decision", "score", "cost", "stop_logprob", "agreement", "answer")
PRICE_BEFORE: Final = "stop_price_before"
MOST_CHANGE: Final = 1.0  # of cost over budget, less 1, that one update of the price counts


@dataclass(frozen=True, slots=True)
class Budget:
    """What the policy is to spend on average: the price rises where it spends more, by `step` in its
    logarithm where it spends twice as much."""

    cost: float
    step: float

    def next_price(self, price: float, spent: float | None) -> float:
        """The dual update of the price, in the form that keeps it above 0."""
        if spent is None:
            return price
        over = min(max(spent / self.cost - 1, -MOST_CHANGE), MOST_CHANGE)
        return price * math.exp(self.step * over)


@dataclass(frozen=True, slots=True)
class StopsStage:
    """Value every decision point, and hold the policy's stops against rules."""

    spec: StopSpec
    budget: Budget | None = None

    name: str = "stops"
    folder: str = "stops"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        seen = pa.schema([EPISODES.field(name) for name in _EPISODES])
        read = {"turns": _SEEN, "episodes": seen, "rewards": _REWARDS}
        probes = {"probe_turns": _SEEN, "played_probes": PLAYED_PROBES, "probe_rewards": _REWARDS}
        return read | probes | dict.fromkeys(self.carried, STOP_PRICE)

    @property
    def carried(self) -> dict[str, str]:
        """Inputs that are outputs of an iteration before, by name; without rows in the first."""
        return {} if self.budget is None else {PRICE_BEFORE: "stop_price"}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        tables = {"stops": STOPS, "probes": PROBES, "stop_curve": STOP_CURVE}
        return tables | ({} if self.budget is None else {"stop_price": STOP_PRICE})

    @property
    def places(self) -> dict[str, str]:
        places = {"stops": "points", "probes": "probes", "stop_curve": "curve", "stop_price": "price"}
        return {name: places[name] for name in self.outputs}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs if name not in self.carried}
        spec = self.spec
        if self.budget is not None and (before := inputs[PRICE_BEFORE].read().to_pylist()):
            spec = StopSpec(
                spec.cost, before[-1]["next_price"], spec.held_back, spec.answer_step, spec.epsilon
            )
        receipts = map_parts(
            stops_part,
            aligned_parts(tables),
            tables=tables,
            sinks={name: outputs[name] for name in ("stops", "probes")},
            spec=spec,
        )
        parts = {name: [receipt["parts"][name] for receipt in receipts] for name in ("stops", "probes")}
        excluded: dict[str, int] = {}
        for receipt in receipts:
            for reason, count in receipt["excluded"].items():
                excluded[reason] = excluded.get(reason, 0) + count
        points = sum(receipt["points"] for receipt in receipts)
        account = Account("stops", "decision point", points, points - sum(excluded.values()), excluded)
        rows = outputs["stops"].ref(parts["stops"]).read(_CURVE).to_pylist()
        traces = traces_of(rows)
        at = {"iteration": context.iteration, "block": context.block}
        measured, curve, notes = _measured(traces, spec)
        metrics = {"points": float(points), "price": spec.price, **measured}
        metrics["probe_tokens"] = float(sum(receipt["probe_tokens"] for receipt in receipts))
        result = StageResult(parts, [account], metrics, notes)
        table = rows_to_table([{**dict.fromkeys(STOP_CURVE.names), **at, **row} for row in curve], STOP_CURVE)
        result.parts["stop_curve"] = [outputs["stop_curve"].write_part(0, table)]
        if self.budget is not None:
            price = _price(self.budget, spec.price, measured.get("cost"), at)
            result.parts["stop_price"] = [
                outputs["stop_price"].write_part(0, rows_to_table([price], STOP_PRICE))
            ]
        return result


def stops_part(
    index: int, tables: Mapping[str, TableRef], sinks: Mapping[str, TableSink], spec: StopSpec
) -> dict[str, Any]:
    """Value the decisions of part `index` and write them; the receipt has its parts and counts."""

    def rows(name: str, columns: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = tables[name].read_part(index, list(columns)).to_pylist()
        return found

    stops, probes = stop_tables(
        rows("episodes", _EPISODES),
        rows("turns", TURNS_SEEN),
        returns_of(rows("rewards", _REWARDS.names)),
        rows("played_probes", PLAYED_PROBES.names),
        rows("probe_turns", TURNS_SEEN),
        returns_of(rows("probe_rewards", _REWARDS.names)),
        spec,
    )
    counts = pl.Series([row["excluded"] for row in stops], dtype=pl.String).drop_nulls().value_counts()
    return {
        "parts": {
            "stops": sinks["stops"].write_part(index, rows_to_table(stops, STOPS)),
            "probes": sinks["probes"].write_part(index, rows_to_table(probes, PROBES)),
        },
        "points": len(stops),
        "excluded": dict(sorted(counts.iter_rows())),
        "probe_tokens": sum(row["tokens"] or 0 for row in probes),
    }


def _measured(traces: Traces, spec: StopSpec) -> tuple[dict[str, float], list[dict[str, Any]], list[str]]:
    """Metrics, rows of the curve and notes. Rules are compared on traces that went on to their end only."""
    if not len(traces):
        return {}, [], ["no stop decision has a score, so nothing is known of stops"]
    if not spec.held_back:
        rows = np.arange(len(traces))
        cost, score = (values[rows, traces.last] for values in (traces.cost, traces.score))
        utility = score - spec.price * cost
        metrics = {"cost": cost.mean(), "score": score.mean(), "utility": utility.mean()}
        metrics["point"] = traces.last.mean()
        return {name: float(value) for name, value in metrics.items()}, [], []
    rules = ruled(traces, spec.price)
    fixed, policy = best_fixed(rules), next(rule for rule in rules if rule.rule == "policy")
    metrics = measures(traces, spec.price)
    metrics |= {"point": policy.point, "best_fixed_utility": fixed.utility, "best_fixed_point": fixed.point}
    metrics["hindsight_utility"] = next(rule.utility for rule in rules if rule.rule == "hindsight")
    curve = [_curve_row(rule, len(traces)) for rule in rules]
    curve += [
        {"rule": "calibration", "setting": str(k), "score": b.score, "claim": b.claim, "mass": b.mass,
         "episodes": len(traces)}
        for k, b in enumerate(calibration(traces))
    ]  # fmt: skip
    answers = returned(traces, traces.last)
    curve += [
        {"rule": "return", "setting": name, "score": score, "episodes": len(traces)}
        for name, score in answers.items()
    ]
    best = max(answers, key=lambda name: (answers[name], name == "last"))
    notes = []
    if answers[best] > answers["last"]:
        notes.append(
            f"of all answers of a trace, the {best} one scores {answers[best]:.3f} and the last one "
            f"{answers['last']:.3f}: late rounds spoil answers"
        )
    return metrics, curve, notes


def _curve_row(rule: Ruled, episodes: int) -> dict[str, Any]:
    setting = None if rule.setting is None else f"{rule.setting:g}"
    return {
        "rule": rule.rule,
        "setting": setting,
        "episodes": episodes,
        "point": rule.point,
        "cost": rule.cost,
        "score": rule.score,
        "utility": rule.utility,
    }


def _price(budget: Budget, price: float, spent: float | None, at: Mapping[str, int]) -> dict[str, Any]:
    return {
        **at,
        "price": price,
        "cost": spent,
        "budget": budget.cost,
        "next_price": budget.next_price(price, spent),
    }
