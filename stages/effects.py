"""played_interventions, rewards → interventions: what came of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.interventions import INTERVENTIONS, PLAYED_INTERVENTIONS
from workflows.trajectory import REWARDS, conform
from workflows.vocabulary import Op


@dataclass(frozen=True, slots=True)
class EffectsStage:
    """Give each intervention the return of its play, and that of the stored episode by the same rewards."""

    name: str = "effects"
    folder: str = "interventions"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"played_interventions": PLAYED_INTERVENTIONS, "rewards": REWARDS}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"interventions": INTERVENTIONS}

    @property
    def places(self) -> dict[str, str]:
        return {"interventions": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        receipts = map_parts(
            _effects_part,
            aligned_parts(inputs),
            brief=True,
            tables=dict(inputs),
            sink=outputs["interventions"],
        )
        parts = [receipt["part"] for receipt in receipts]
        rows = sum(part.rows for part in parts)
        account = Account("effects", "intervention", inputs["played_interventions"].rows, rows)
        return StageResult({"interventions": parts}, [account])


def _effects_part(index: int, tables: Mapping[str, TableRef], sink: TableSink) -> dict[str, Any]:
    played = tables["played_interventions"].read_part(index)
    rewards = tables["rewards"].read_part(index, ["episode_id", "reward"])
    return {"part": sink.write_part(index, effects(played, rewards))}


def effects(played: pa.Table, rewards: pa.Table) -> pa.Table:
    """The rows of `played_interventions` with `return`, `base_return` and `effect`.

    The return of an episode is the mean reward of its turns that have one. That of the stored episode is that
    of its replay without an intervention, in which every turn is as it is stored.
    """
    rows = pl.DataFrame(played)
    returns = (
        pl.DataFrame(rewards)
        .drop_nulls("reward")
        .sort("episode_id", maintain_order=True)
        .group_by("episode_id", maintain_order=True)
        .agg(pl.col("reward").mean().alias("return"))
    )
    rows = rows.join(
        returns.rename({"episode_id": "play_id"}), on="play_id", how="left", maintain_order="left"
    )
    # the replay of an episode that is not equal to it says nothing of it
    plain = rows.filter((pl.col("op") == str(Op.NONE)) & pl.col("first_difference").is_null())
    base = plain.select("episode_id", base_return="return")
    rows = rows.join(base, on="episode_id", how="left", maintain_order="left")
    rows = rows.with_columns(effect=pl.col("base_return") - pl.col("return"))
    return conform(rows.select(INTERVENTIONS.names).to_arrow(), INTERVENTIONS)
