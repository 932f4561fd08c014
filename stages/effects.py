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
from workflows.interventions import COALITIONS, INTERVENTIONS, PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.trajectory import REWARDS, conform
from workflows.vocabulary import Op


@dataclass(frozen=True, slots=True)
class EffectsStage:
    """Give each intervention the return of its play, and that of the stored episode by the same rewards.

    Args:
        games: whether there are sets of inputs, whose returns make the effects of op shapley.
    """

    games: bool = False

    name: str = "effects"
    folder: str = "interventions"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        games = {"played_coalitions": PLAYED_COALITIONS} if self.games else {}
        return {"played_interventions": PLAYED_INTERVENTIONS, **games, "rewards": REWARDS}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"interventions": INTERVENTIONS, **({"coalitions": COALITIONS} if self.games else {})}

    @property
    def places(self) -> dict[str, str]:
        return {"interventions": "", **({"coalitions": "coalitions"} if self.games else {})}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        receipts = map_parts(
            _effects_part,
            aligned_parts(inputs),
            brief=True,
            tables=dict(inputs),
            sinks={name: outputs[name] for name in self.outputs},
        )
        parts = {name: [receipt[name] for receipt in receipts] for name in self.outputs}
        rows = sum(part.rows for part in parts["interventions"])
        account = Account("effects", "intervention", inputs["played_interventions"].rows, rows)
        return StageResult(parts, [account])


def _effects_part(
    index: int, tables: Mapping[str, TableRef], sinks: Mapping[str, TableSink]
) -> dict[str, Any]:
    made = effects_of_part(index, tables, tables["rewards"])
    return {name: sink.write_part(index, made[name]) for name, sink in sinks.items()}


def effects_of_part(index: int, tables: Mapping[str, TableRef], scored: TableRef) -> dict[str, pa.Table]:
    """Table `interventions` of a part, and `coalitions` where there are sets of inputs."""
    played = tables["played_interventions"].read_part(index)
    rewards = scored.read_part(index, ["episode_id", "reward"])
    if "played_coalitions" not in tables:
        return {"interventions": effects(played, rewards)}
    sets = coalition_returns(tables["played_coalitions"].read_part(index), rewards)
    return {"interventions": effects(played, rewards, sets), "coalitions": sets}


def _with_returns(played: pa.Table, rewards: pa.Table) -> pl.DataFrame:
    """Rows of plays with `return`: the mean reward of the turns of their play that have one."""
    returns = (
        pl.DataFrame(rewards)
        .drop_nulls("reward")
        .sort("episode_id", maintain_order=True)
        .group_by("episode_id", maintain_order=True)
        .agg(pl.col("reward").mean().alias("return"))
    )
    return pl.DataFrame(played).join(
        returns.rename({"episode_id": "play_id"}), on="play_id", how="left", maintain_order="left"
    )


def coalition_returns(played: pa.Table, rewards: pa.Table) -> pa.Table:
    """The rows of `played_coalitions` with `return`, that of the play."""
    rows = _with_returns(played, rewards)
    return conform(rows.select(COALITIONS.names).to_arrow(), COALITIONS)


def shapley_values(coalitions: pa.Table) -> pl.DataFrame:
    """The value of each input: `episode_id`, `recipient`, `turn_index` and `value`, the sum over the sets of
    weight times return; null where a set has no return.

    The values of one reply's inputs add up to the return with all of them less that with none.
    """
    rows = pl.DataFrame(coalitions)
    game = ("episode_id", "recipient")
    known = pl.col("return").is_not_null().all().over(game)
    return (
        rows.with_columns(_known=known)
        .select(*game, "_known", "return", turn_index="inputs", weight="weights")
        .explode("turn_index", "weight")
        .group_by(*game, "turn_index", maintain_order=True)
        .agg(
            value=pl.when(pl.col("_known").first())
            .then((pl.col("weight") * pl.col("return")).sum())
            .otherwise(None)
        )
    )


def effects(played: pa.Table, rewards: pa.Table, coalitions: pa.Table | None = None) -> pa.Table:
    """The rows of `played_interventions` with `return`, `base_return` and `effect`.

    The return of an episode is the mean reward of its turns that have one. That of the stored episode is that
    of its replay without an intervention, in which every turn is as it is stored.

    Args:
        coalitions: rows of `COALITIONS`, where op shapley is among the interventions.
    """
    rows = _with_returns(played, rewards)
    # the replay of an episode that is not equal to it says nothing of it
    plain = rows.filter((pl.col("op") == str(Op.NONE)) & pl.col("first_difference").is_null())
    base = plain.select("episode_id", base_return="return")
    rows = rows.join(base, on="episode_id", how="left", maintain_order="left")
    rows = rows.with_columns(effect=pl.col("base_return") - pl.col("return"))
    if coalitions is not None:
        values = shapley_values(coalitions).with_columns(op=pl.lit(str(Op.SHAPLEY)))
        key = ("episode_id", "recipient", "turn_index", "op")
        rows = rows.join(values, on=key, how="left", maintain_order="left")
        rows = rows.with_columns(effect=pl.coalesce("effect", "value"))
    return conform(rows.select(INTERVENTIONS.names).to_arrow(), INTERVENTIONS)
