"""turns, ratios, trust → shift, prefix_weights: what teammates' updates did to a unit's rows. Pure.

Each update writes how far it moved every message (`ratios`). For a row of unit k, the product W of the ratios
of other units' turns before it says how much likelier this context is with the updated team than with the one
that played: E_new[f] = E_played[W f]. `ShiftStage` tells at the end of a block what became of the plays,
`PrefixStage` at the start of one gives the weights to train on them all the same.

A turn that comes earlier and is not in the context, as in a parallel branch, adds variance to W and no bias.
Source: HAPPO's product of ratios (arXiv:2109.11251), over states instead of joint actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.tables.parquet import TableRef, TableSink
from workflows.trajectory import CREDIT, PREFIX_WEIGHTS, RATIOS, SHIFT, TRUST, TURN_KEYS, TURNS, rows_to_table
from workflows.vocabulary import Event

Floats = npt.NDArray[np.float64]
LIMIT: Final = 20.0  # of |log W|
SEEN: Final = (*TURN_KEYS, "event", "model_id", "trainable")
TURNS_SEEN: Final = pa.schema([TURNS.field(name) for name in SEEN])
CREDIT_SEEN: Final = pa.schema([CREDIT.field(name) for name in (*TURN_KEYS, "advantage")])
DRAWS: Final = 500  # of the bootstrap


@dataclass(frozen=True, slots=True)
class ShiftStage:
    """One row for each unit: how far the updates on some plays have moved what its rows of them are of.

    Args:
        units: ids of the models that are trained.
        updated: those of them whose updates on these plays are made, in this block and before.
    """

    units: tuple[str, ...]
    updated: tuple[str, ...]

    name: str = "shift"
    folder: str = "shift"
    lease: Lease = "none"
    does_without: ClassVar[tuple[str, ...]] = ("ratios",)  # of updates by an older version: none is known

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        of_units = {f"ratios/{unit}": RATIOS for unit in self.updated}
        of_units |= {f"trust/{unit}": TRUST for unit in self.updated}
        return {"turns": TURNS_SEEN, "credit": CREDIT_SEEN} | of_units

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"shift": SHIFT}

    @property
    def places(self) -> dict[str, str]:
        return {"shift": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        turns = pl.DataFrame(inputs["turns"].read(SEEN))
        ratios, moved = _moved(inputs, self.updated)
        at = {"iteration": context.iteration, "block": context.block}
        credit = pl.DataFrame(inputs["credit"].read(CREDIT_SEEN.names))
        rows = [
            at | shift_of(unit, turns, ratios, moved) | stale_of(unit, turns, ratios, moved, credit)
            for unit in self.units
        ]
        metrics = {
            f"{name}/{row['model_id']}": row[name]
            for row in rows
            for name in ("shift_budget", "ess_prefix")
            if row[name] is not None
        }
        return StageResult(
            {"shift": [outputs["shift"].write_part(0, rows_to_table(rows, SHIFT))]}, [], metrics
        )


@dataclass(frozen=True, slots=True)
class PrefixStage:
    """The weights of one unit's rows on plays after which teammates were updated.

    Args:
        model_id: the unit.
        updated: teammates that were updated on these plays.
        cap: the largest weight.
    """

    model_id: str
    updated: tuple[str, ...]
    cap: float
    lease: Lease = "none"

    @property
    def name(self) -> str:
        return f"reweight/{self.model_id}"

    @property
    def folder(self) -> str:
        return f"prefix_weights/{self.model_id}"

    @property
    def table(self) -> str:
        return f"prefix_weights/{self.model_id}"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        of_units = {f"ratios/{unit}": RATIOS for unit in self.updated}
        return {"turns": TURNS_SEEN} | of_units | {f"trust/{unit}": TRUST for unit in self.updated}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {self.table: PREFIX_WEIGHTS}

    @property
    def places(self) -> dict[str, str]:
        return {self.table: ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        turns = pl.DataFrame(inputs["turns"].read(SEEN))
        ratios, moved = _moved(inputs, self.updated)
        weighed = prefix_weights(self.model_id, turns, ratios, moved, self.cap)
        table = weighed.to_arrow().cast(PREFIX_WEIGHTS)
        known = weighed["weight"].drop_nulls()
        metrics = {"rows": float(weighed.height), "unscored": float(weighed["weight"].null_count())}
        if known.len():
            metrics |= {
                "weight_mean": float(known.mean()),  # type: ignore[arg-type]
                "weight_max": float(known.max()),  # type: ignore[arg-type]
                "capped_share": float((known >= self.cap).mean()),  # type: ignore[arg-type]
            }
        account = Account(
            f"turns of {self.model_id} to prefix_weights", "turn", weighed.height, table.num_rows
        )
        return StageResult({self.table: [outputs[self.table].write_part(0, table)]}, [account], metrics)


def prefix_weights(
    unit: str, turns: pl.DataFrame, ratios: pl.DataFrame, moved: Mapping[str, float], cap: float
) -> pl.DataFrame:
    """`PREFIX_WEIGHTS` of a unit's trainable turns, sorted by key.

    Args:
        turns: columns `SEEN` of all turns.
        ratios: `RATIOS` of all updates.
        moved: by model that an update has moved, its KL per episode.
        cap: the largest weight.
    """
    logs = log_weights(unit, turns, ratios, moved)
    cut = pl.col("prefix").clip(-LIMIT, LIMIT)
    return logs.select(*TURN_KEYS, log_weight="prefix", weight=cut.exp().clip(upper_bound=cap)).sort(
        TURN_KEYS
    )


def log_weights(
    unit: str, turns: pl.DataFrame, ratios: pl.DataFrame, moved: Mapping[str, float]
) -> pl.DataFrame:
    """For each trainable turn of a unit the log W of the turns before it, `prefix`, and after it, `suffix`:
    sums over turns of teammates that moved; null where one of these has no ratio."""
    of_teammates = (pl.col("event") == Event.LLM) & pl.col("model_id").is_in([m for m in moved if m != unit])
    order = turns.join(ratios, on=TURN_KEYS, how="left").sort(TURN_KEYS)
    log = pl.when(of_teammates).then("log_ratio").otherwise(0.0)
    missing = (of_teammates & pl.col("log_ratio").is_null()).cast(pl.Int64)
    summed = order.with_columns(_log=log.fill_null(0.0), _missing=missing).with_columns(
        _before=pl.col("_log").cum_sum().over("episode_id"),
        _missing_before=pl.col("_missing").cum_sum().over("episode_id"),
        _all=pl.col("_log").sum().over("episode_id"),
        _missing_all=pl.col("_missing").sum().over("episode_id"),
    )
    mine = (pl.col("model_id") == unit) & (pl.col("event") == Event.LLM) & pl.col("trainable")
    return summed.filter(mine).select(
        *TURN_KEYS,
        prefix=pl.when(pl.col("_missing_before") == 0).then("_before"),
        suffix=pl.when(pl.col("_missing_all") == pl.col("_missing_before")).then(
            pl.col("_all") - pl.col("_before")
        ),
    )


def shift_of(
    unit: str, turns: pl.DataFrame, ratios: pl.DataFrame, moved: Mapping[str, float]
) -> dict[str, Any]:
    """The row of `SHIFT` of a unit, without its place. Arguments: see `prefix_weights`."""
    logs = log_weights(unit, turns, ratios, moved)
    teammates = [model for model in moved if model != unit]
    row: dict[str, Any] = {"model_id": unit, "teammates": len(teammates), "rows": logs.height}
    prefix, suffix = logs["prefix"], logs["suffix"]
    row["unscored"] = prefix.null_count()
    far = [max(moved[model], 0.0) for model in _above(unit, teammates, turns)]
    row["shift_budget"] = math.sqrt(math.fsum(far) / 2)
    row["shift_budget_triangle"] = math.fsum(math.sqrt(each / 2) for each in far)
    for name, values in (("prefix", prefix), ("suffix", suffix), ("joint", prefix + suffix)):
        row[f"ess_{name}"] = effective_share(_relative(values))
    known = prefix.drop_nulls().to_numpy()
    if len(known):
        weights = _weights(prefix)
        row |= {
            "tv_hat": float(np.abs(weights - 1).mean() / 2),
            "max_weight_share": float(weights.max() / weights.sum()),
            "clipped_share": float((np.abs(known) > LIMIT).mean()),
        }
        quantiles = np.quantile(known, (0.05, 0.5, 0.95))
        row |= dict(
            zip(("log_weight_p05", "log_weight_p50", "log_weight_p95"), quantiles.tolist(), strict=True)
        )
    return row


def stale_of(
    unit: str, turns: pl.DataFrame, ratios: pl.DataFrame, moved: Mapping[str, float], credit: pl.DataFrame
) -> dict[str, Any]:
    """What a unit's own update promises on these plays, and by weights on plays of its updated teammates.

    E_new[(r - 1) A] = E_played[W (r - 1) A] where W has the ratios of all turns of updated teammates, before
    the row (contexts) and after it (what becomes of its words). Baselines within A stay those of the plays.
    Columns of `SHIFT`; none where the unit has not moved, or no row has an advantage.
    """
    if unit not in moved:
        return {}
    rows = (
        log_weights(unit, turns, ratios, moved)
        .join(ratios, on=TURN_KEYS)
        .join(credit.select(*TURN_KEYS, "advantage"), on=TURN_KEYS)
        .drop_nulls(["prefix", "suffix", "log_ratio"])
        .with_columns(pl.col("prefix", "suffix", "log_ratio").clip(-LIMIT, LIMIT))
    )
    ratio = pl.col("log_ratio").exp()
    gain = (ratio - 1) * pl.col("advantage")
    episodes = (
        rows.select(
            "episode_id",
            cached=gain,
            fresh=(pl.col("prefix") + pl.col("suffix")).clip(-LIMIT, LIMIT).exp() * gain,
            far=pl.col("prefix").exp() * (ratio - 1 - pl.col("log_ratio")),
        )
        .group_by("episode_id")
        .agg(pl.all().sum())
        .sort("episode_id")
    )
    if not episodes.height or rows["advantage"].null_count() == rows.height:
        return {}
    low, high = _interval((episodes["cached"] - episodes["fresh"]).to_numpy())
    return {
        "surrogate_cached": episodes["cached"].mean(),
        "surrogate_fresh": episodes["fresh"].mean(),
        "stale_low": low,
        "stale_high": high,
        "kl_seq_post": episodes["far"].mean(),
    }


def _interval(differences: Floats) -> tuple[float, float]:
    """The bootstrap interval of a mean at 95 %, equal for equal numbers."""
    random = np.random.default_rng(20260)
    count = len(differences)
    even = np.full(count, 1 / count)
    means = [random.multinomial(count, even) @ differences / count for _ in range(DRAWS)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def effective_share(weights: Floats) -> float | None:
    """(ΣW)² / (N ΣW²): 1 where all weights are equal, 1 / N where one has all; None of nothing."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else None


def _relative(logs: pl.Series) -> Floats:
    """Weights as shares of the largest, uncut: cut, those far below 1 would all be equal, and look usable."""
    known = logs.drop_nulls().to_numpy()
    return np.exp(known - known.max()) if len(known) else known


def _weights(logs: pl.Series) -> Floats:
    return np.exp(np.clip(logs.drop_nulls().to_numpy(), -LIMIT, LIMIT))


def _above(unit: str, teammates: Sequence[str], turns: pl.DataFrame) -> list[str]:
    """The teammates that speak before a unit in some episode."""
    last = (
        turns.filter(pl.col("model_id") == unit).group_by("episode_id").agg(last=pl.col("turn_index").max())
    )
    before = turns.join(last, on="episode_id").filter(pl.col("turn_index") < pl.col("last"))
    spoke = set(before["model_id"].drop_nulls())
    return [model for model in teammates if model in spoke]


def _moved(inputs: Mapping[str, TableRef], updated: Sequence[str]) -> tuple[pl.DataFrame, dict[str, float]]:
    """The ratios of all messages, and by model that moved the KL per episode of its update."""
    moved: dict[str, float] = {}
    frames = [pl.DataFrame(RATIOS.empty_table())]
    for unit in updated:
        rows = inputs[f"trust/{unit}"].read().to_pylist()
        row = rows[-1] if rows else None
        if row is not None and row["decision"] is not None and row["kept_share"]:
            moved[unit] = row["per_episode"] or 0.0
            frames.append(pl.DataFrame(inputs[f"ratios/{unit}"].read()))
    return pl.concat(frames), moved
