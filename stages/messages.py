"""What messages were worth: the rewards of their replays, and credit from these, doubly robust. No GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
import pyarrow as pa

from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from stages.base import Account, Context, StageResult
from stages.counterfactual import PLAYED
from stages.effects import effects_of_part
from stages.lease import Lease
from stages.message_credit import (
    HEARD,
    Cheap,
    Fit,
    diagnostics,
    fit_of,
    heard,
    merged_fits,
    message_credit,
    summary,
)
from stages.parts import map_parts
from stages.reward import RewardStage
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.credit_tables import MESSAGE_CREDIT, MESSAGES
from workflows.interventions import COALITIONS, INTERVENTIONS, PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.trajectory import REWARDS, TURNS


@dataclass(frozen=True, slots=True)
class ReplayRewardStage:
    """Score the replays as the sampled plays are scored."""

    reward: RewardStage

    name: str = "counterfactual_reward"
    folder: str = "counterfactual_rewards"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, f"{PLAYED}turns": TURNS_SEEN, f"{PLAYED}episodes": EPISODES_SEEN}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {f"{PLAYED}rewards": REWARDS}

    @property
    def places(self) -> dict[str, str]:
        return {f"{PLAYED}rewards": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        plain = {name.removeprefix(PLAYED): table for name, table in inputs.items()}
        sinks = {name.removeprefix(PLAYED): sink for name, sink in outputs.items()}
        result = self.reward.run(plain, sinks, context)
        return replace(
            result,
            parts={PLAYED + name: parts for name, parts in result.parts.items()},
            accounts=[replace(a, boundary=f"counterfactual {a.boundary}") for a in result.accounts],
            notes=[f"replays: {note}" for note in result.notes if "can't tell good from bad" not in note],
        )


_TURNS: Final = pa.schema([TURNS.field(column) for column in HEARD])


@dataclass(frozen=True, slots=True)
class MessagesStage:
    """Give each intervention what came of it, and each message its credit.

    Args:
        cheap: what a message is expected to be worth without its own replays (`stages.message_credit`).
        games: whether there are sets of inputs (`stages.effects`).
    """

    cheap: Cheap = "fitted"
    games: bool = False

    name: str = "messages"
    folder: str = "messages"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {
            "messages": MESSAGES,
            "played_interventions": PLAYED_INTERVENTIONS,
            **({"played_coalitions": PLAYED_COALITIONS} if self.games else {}),
            f"{PLAYED}rewards": REWARDS,
            "turns": _TURNS,
            f"{PLAYED}turns": _TURNS,
        }

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        games = {"coalitions": COALITIONS} if self.games else {}
        return {"interventions": INTERVENTIONS, **games, "message_credit": MESSAGE_CREDIT}

    @property
    def places(self) -> dict[str, str]:
        games = {"coalitions": "coalitions"} if self.games else {}
        return {"interventions": "interventions", **games, "message_credit": "credit"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        fits = None
        if self.cheap == "fitted":
            surveys = map_parts(fit_part, indices, brief=True, tables=tables)
            fits = merged_fits([receipt["fit"] for receipt in surveys])
        receipts = map_parts(
            credit_part,
            indices,
            brief=True,
            tables=tables,
            sinks={name: outputs[name] for name in self.outputs},
            cheap=self.cheap,
            fits=fits,
        )
        return _result(receipts, inputs["played_interventions"].rows, list(self.outputs))


def fit_part(index: int, tables: Mapping[str, TableRef]) -> dict[str, Any]:
    """What effects of a part say of how effects go with team credit."""
    messages, played, _ = _read(index, tables)
    return {"fit": fit_of(messages, played)}


def credit_part(
    index: int,
    tables: Mapping[str, TableRef],
    sinks: Mapping[str, TableSink],
    cheap: Cheap,
    fits: Fit | None,
) -> dict[str, Any]:
    """Credit part `index` and write it; the receipt has its parts and what diagnostics are made of."""
    messages, played, made = _read(index, tables)
    credit = message_credit(messages, played, cheap, fits)
    turns, plays = (
        pl.DataFrame(tables[name].read_part(index, HEARD)) for name in ("turns", f"{PLAYED}turns")
    )
    return {
        **{name: sinks[name].write_part(index, table) for name, table in made.items()},
        "message_credit": sinks["message_credit"].write_part(index, credit.table),
        "summary": summary(credit),
        "heard": heard(messages, played, turns, plays),
    }


def _read(
    index: int, tables: Mapping[str, TableRef]
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, pa.Table]]:
    """Messages, interventions, and the tables that effects are written to."""
    made = effects_of_part(index, tables, tables[f"{PLAYED}rewards"])
    messages = pl.DataFrame(tables["messages"].read_part(index))
    return messages, pl.DataFrame(made["interventions"]), made


def _result(receipts: Sequence[Mapping[str, Any]], interventions: int, tables: Sequence[str]) -> StageResult:
    parts = {name: [receipt[name] for receipt in receipts] for name in tables}
    rows = sum(part.rows for part in parts["interventions"])
    metrics, notes = diagnostics([r["summary"] for r in receipts], [r["heard"] for r in receipts])
    return StageResult(parts, [Account("effects", "intervention", interventions, rows)], metrics, notes)
