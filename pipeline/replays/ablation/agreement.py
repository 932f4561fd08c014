"""How alike several credits of the same turns are: means, rank correlations, where they disagree most.

A pure function of one frame. Correlations are Spearman's: settings whose numbers are in another unit but
put the same plays first train alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import polars as pl

from stages.evaluate import students_t

Matrix = Mapping[tuple[str, str], float | None]  # by pair of variants, each pair once


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike variants credit the same turns; made by `agreement_of`.

    - `roles`: a row for each variant and role: turns, mean return with its interval (`_intervals`), mean
      and mean absolute advantage.
    - `returns`, `advantages`: Spearman's correlation of episode returns and of turn advantages, over those
      that both variants use; None where either does not vary.
    - `episodes`: every episode that all variants use: its mean return and its rank, from 0 to 1, in each,
      and `spread`, the highest rank minus the lowest; most disputed first.
    - `left_out`: by variant, episodes that others use and it does not.
    """

    variants: tuple[str, ...]
    turns: int
    roles: pl.DataFrame
    returns: Matrix
    advantages: Matrix
    episodes: pl.DataFrame
    left_out: Mapping[str, int]
    shown: int

    @property
    def disputed(self) -> list[dict[str, Any]]:
        """The episodes on which the variants disagree most."""
        return self.episodes.filter(pl.col("spread") > 0).head(self.shown).to_dicts()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "variants": list(self.variants),
            "turns": self.turns,
            "episodes": self.episodes.height,
            "left_out": dict(self.left_out),
            "roles": self.roles.to_dicts(),
            "spearman": {
                "episode_returns": [{"variants": list(p), "value": v} for p, v in self.returns.items()],
                "turn_advantages": [{"variants": list(p), "value": v} for p, v in self.advantages.items()],
            },
            "disputed": self.disputed,
        }


def agreement_of(numbers: pl.DataFrame, variants: tuple[str, ...], shown: int = 10) -> Agreement:
    """Compare variants over turns.

    Args:
        numbers: a row for each turn: `episode_id`, `role`, and `return/<variant>`, `advantage/<variant>`
            of each variant, null where it does not use the turn.
        shown: how many disputed episodes to show.
    """
    by_episode = numbers.group_by("episode_id", maintain_order=True)
    episodes = by_episode.agg(pl.col(f"return/{v}").mean() for v in variants)
    return Agreement(
        variants,
        numbers.height,
        roles=pl.concat([_by_role(numbers, v) for v in variants]),
        returns=_matrix(episodes, "return", variants),
        advantages=_matrix(numbers, "advantage", variants),
        episodes=_disputed(episodes, variants),
        left_out={v: episodes[f"return/{v}"].null_count() for v in variants},
        shown=shown,
    )


def spearman(one: pl.Series, other: pl.Series) -> float | None:
    """Spearman's rank correlation over the rows where both have a number, ties at their mean rank; None
    for fewer than two, or where either does not vary."""
    both = pl.DataFrame([one.alias("x"), other.alias("y")]).drop_nulls()
    if both.height < 2 or both["x"].n_unique() == 1 or both["y"].n_unique() == 1:
        return None
    value = both.select(pl.corr(pl.col("x").rank(), pl.col("y").rank())).item()
    return None if value is None or math.isnan(value) else max(-1.0, min(1.0, float(value)))


def _matrix(frame: pl.DataFrame, what: str, variants: Sequence[str]) -> dict[tuple[str, str], float | None]:
    return {
        (a, b): spearman(frame[f"{what}/{a}"], frame[f"{what}/{b}"]) for a, b in combinations(variants, 2)
    }


def _by_role(numbers: pl.DataFrame, variant: str) -> pl.DataFrame:
    returns, advantage = pl.col(f"return/{variant}"), pl.col(f"advantage/{variant}")
    means = (
        numbers.group_by("role")
        .agg(
            turns=returns.count(),
            return_mean=returns.mean(),
            advantage_mean=advantage.mean(),
            advantage_abs_mean=advantage.abs().mean(),
        )
        .sort("role")
        .select(pl.lit(variant).alias("variant"), pl.all())
    )
    return means.join(
        _intervals(numbers, variant), on="role", how="left", maintain_order="left", nulls_equal=True
    )


def _intervals(numbers: pl.DataFrame, variant: str) -> pl.DataFrame:
    """By role the 95 % interval of the mean return over turns (Student's t); null for a single group.

    Turns of one group are of the same task and not independent, so groups are what is drawn: the mean is a
    ratio of sums over them, with the ratio's variance (Cochran, Sampling Techniques, 1977, chapter 2.11).
    """
    returns = pl.col(f"return/{variant}")
    group = pl.col("episode_id").str.replace(r"/[^/]*$", "")
    sums = numbers.group_by("role", group).agg(n=returns.count(), total=returns.sum()).filter(pl.col("n") > 0)
    mean, count = pl.col("total").sum() / pl.col("n").sum(), pl.len()
    squares = ((pl.col("total") - mean * pl.col("n")) ** 2).sum()
    error = (squares * count / (count - 1)).sqrt() / pl.col("n").sum()
    rows = sums.sort("role", "episode_id").group_by("role").agg(groups=count, mean=mean, error=error)
    intervals = []
    for role, groups, value, spread in rows.iter_rows():
        half = students_t(groups - 1) * spread if groups > 1 else None
        low, high = (None, None) if half is None else (value - half, value + half)
        intervals.append({"role": role, "return_low": low, "return_high": high})
    kinds = {"role": pl.String, "return_low": pl.Float64, "return_high": pl.Float64}
    return pl.DataFrame(intervals, schema=kinds)


def _disputed(episodes: pl.DataFrame, variants: Sequence[str]) -> pl.DataFrame:
    common = episodes.drop_nulls([f"return/{v}" for v in variants])
    # a rank from 0 to 1 compares settings whose returns are in other units
    scale = max(1, common.height - 1)
    ranks = [((pl.col(f"return/{v}").rank() - 1) / scale).alias(f"rank/{v}") for v in variants]
    names = [f"rank/{v}" for v in variants]
    return (
        common.with_columns(ranks)
        .with_columns(spread=pl.max_horizontal(names) - pl.min_horizontal(names))
        .sort("spread", "episode_id", descending=[True, False])
    )
