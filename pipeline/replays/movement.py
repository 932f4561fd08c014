"""How returns and advantages of a replay differ from the stored ones, by role.

Sums over parts, added up: no table comes to the driver, whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from pipeline.store.finished import Finished
from stages.base import Progress
from stages.parts import map_parts
from stages.tables.parquet import TableRef
from workflows.trajectory import TURN_KEYS

_CREDIT: Final = (*TURN_KEYS, "return", "advantage", "excluded")


@dataclass(frozen=True, slots=True)
class Movement:
    """Sums by role of turns and, where there is a token level, of tokens; see `part_sums`, `token_sums`."""

    turns: pl.DataFrame
    tokens: pl.DataFrame

    @staticmethod
    def merged(several: Iterable[Movement]) -> Movement:
        several = list(several)
        return Movement(_added([m.turns for m in several]), _added([m.tokens for m in several]))

    def rows(self) -> list[dict[str, Any]]:
        """One row a role: counts, means before and after, how alike they are; None for a missing value."""
        tokens = {row["role"]: row for row in self.tokens.iter_rows(named=True)}
        return [_row(sums, tokens.get(sums["role"])) for sums in self.turns.iter_rows(named=True)]

    def as_dict(self) -> dict[str, Any]:
        return {"roles": self.rows()}


def movement_of(stored: Finished, done: Finished, progress: Progress) -> Movement:
    """Compare the credit, and the token advantages where they were made anew, of one iteration."""
    empty = pl.DataFrame(schema={"role": pl.String})
    if "credit" not in done.tables:
        return Movement(empty, empty)
    after = done.tables["credit"]
    before = stored.tables.get("credit")
    turns = done.tables["turns"]
    progress.start("compare", len(turns.parts), "part")
    receipts = map_parts(
        part_sums,
        range(len(turns.parts)),
        on_done=lambda done: progress.advance(turns=done["turns"]),
        brief=True,
        turns=turns,
        before=before,
        after=after,
    )
    progress.finish()
    return Movement(_added([r["sums"] for r in receipts]), _token_level(stored, done))


def part_sums(index: int, turns: TableRef, before: TableRef | None, after: TableRef) -> dict[str, Any]:
    """Sums over the turns of part `index`, by role: what `_row` divides."""
    roles = pl.DataFrame(turns.read_part(index, (*TURN_KEYS, "role")))
    now = _credited(after, index, "after")
    both = roles.join(now, on=TURN_KEYS, how="left")
    if before is not None:
        both = both.join(_credited(before, index, "before"), on=TURN_KEYS, how="left")
    else:
        nothing = pl.lit(None, dtype=pl.Float64)
        both = both.with_columns(before_return=nothing, before_advantage=nothing)
    both = both.filter(pl.any_horizontal(pl.col("before_return", "after_return").is_not_null()))
    x, y = pl.col("before_advantage"), pl.col("after_advantage")
    paired = x.is_not_null() & y.is_not_null()
    x, y = x.filter(paired), y.filter(paired)
    sums = both.group_by("role").agg(
        *(
            expression
            for when in ("before", "after")
            for expression in (
                pl.col(f"{when}_return").count().alias(f"{when}_turns"),
                pl.col(f"{when}_return").sum(),
                pl.col(f"{when}_advantage").count().alias(f"{when}_advantages"),
                pl.col(f"{when}_advantage").abs().sum().alias(f"{when}_abs"),
            )
        ),
        pairs=paired.sum(),
        same_sign=(x.sign() == y.sign()).sum(),
        x=x.sum(),
        y=y.sum(),
        xx=(x * x).sum(),
        yy=(y * y).sum(),
        xy=(x * y).sum(),
    )
    return {"sums": sums, "turns": roles.height}


def token_sums(index: int, partition: TableRef, advantages: TableRef) -> dict[str, Any]:
    """Tokens of part `index` by role, and the sum of their absolute advantages."""
    roles = pl.DataFrame(partition.read_part(index, (*TURN_KEYS, "role")))
    numbers = pl.DataFrame(advantages.read_part(index, (*TURN_KEYS, "advantages"))).drop_nulls("advantages")
    joined = numbers.join(roles, on=TURN_KEYS)
    value = pl.col("advantages").list
    sums = joined.group_by("role").agg(
        tokens=value.len().sum().cast(pl.Int64),
        total=value.eval(pl.element().abs()).list.sum().cast(pl.Float64).sum(),
    )
    return {"sums": sums}


def _credited(table: TableRef, index: int, when: str) -> pl.DataFrame:
    usable = pl.col("excluded").is_null()
    return pl.DataFrame(table.read_part(index, _CREDIT)).select(
        *TURN_KEYS,
        pl.when(usable).then("return").alias(f"{when}_return"),
        pl.when(usable).then("advantage").alias(f"{when}_advantage"),
    )


def _token_level(stored: Finished, done: Finished) -> pl.DataFrame:
    frames = []
    for when, tables in (("before", stored.tables), ("after", done.tables)):
        of_models = [name.partition("/")[2] for name in tables if name.startswith("token_advantages/")]
        for model_id in of_models if done.manifest("advantage") else ():
            partition, advantages = tables[f"partition/{model_id}"], tables[f"token_advantages/{model_id}"]
            receipts = map_parts(
                token_sums,
                range(len(partition.parts)),
                brief=True,
                partition=partition,
                advantages=advantages,
            )
            summed = _added([r["sums"] for r in receipts])
            frames.append(summed.rename({c: f"{when}_{c}" for c in summed.columns if c != "role"}))
    return _added(frames)


def _added(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Sums of frames by role, sorted; a column that a frame lacks counts as 0."""
    frames = [frame for frame in frames if frame.width > 1]
    if not frames:
        return pl.DataFrame(schema={"role": pl.String})
    together = pl.concat(frames, how="diagonal").with_columns(pl.col("role").fill_null(""))
    return together.group_by("role", maintain_order=True).agg(pl.all().sum()).sort("role")


def _row(sums: Mapping[str, Any], tokens: Mapping[str, Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"role": sums["role"]}
    for when in ("before", "after"):
        row[f"turns_{when}"] = sums[f"{when}_turns"]
        row[f"return_{when}"] = _mean(sums[f"{when}_return"], sums[f"{when}_turns"])
        row[f"advantage_abs_{when}"] = _mean(sums[f"{when}_abs"], sums[f"{when}_advantages"])
    row["same_sign"] = _mean(sums["same_sign"], sums["pairs"])
    row["correlation"] = _correlation(sums)
    for when in ("before", "after"):
        if tokens is not None:
            row[f"token_advantage_abs_{when}"] = _mean(
                tokens.get(f"{when}_total") or 0.0, tokens.get(f"{when}_tokens") or 0
            )
    return row


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _correlation(sums: Mapping[str, Any]) -> float | None:
    """Pearson's, of advantages before and after; None where either does not vary."""
    n = sums["pairs"]
    if n < 2:
        return None
    xx = sums["xx"] - sums["x"] ** 2 / n
    yy = sums["yy"] - sums["y"] ** 2 / n
    xy = sums["xy"] - sums["x"] * sums["y"] / n
    least = 1e-12 * max(sums["xx"], sums["yy"], 1e-300)  # what rounding leaves of numbers that are equal
    if xx <= least or yy <= least:
        return None
    return max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))
