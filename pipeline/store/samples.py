"""Which episodes of an iteration people are shown where not all of them can be: in the tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from pipeline.store.episodes import Played, load_episodes, values_of
from stages.tables.parquet import TableRef
from workflows.trajectory import OK, seed_for

KINDS: Final = ("best", "worst", "failed", "random")


@dataclass(frozen=True, slots=True)
class Chosen:
    """One episode, and which of KINDS it was chosen as."""

    played: Played
    why: str


def choose_episodes(
    tables: Mapping[str, TableRef], count: int, seed: int, metric: str | None = None
) -> list[Chosen]:
    """Up to `count` episodes of all parts: by turns the best, the worst, a failed and any other.

    Best and worst are by the mean return of an episode's turns, or in an evaluation by a metric of its
    table; failed are those whose status is not ok.
    Where episodes are equal, and for those that are any, a hash of the seed and the episode decides: the
    same tables give the same choice. A kind that has no episode left is passed over.
    """
    if count < 1 or "episodes" not in tables:
        return []
    pool = _pool(tables, seed, metric)
    chosen = dict(_by_turns(pool, count))
    places = dict(pool.select("episode_id", "part").iter_rows())
    found: dict[str, Played] = {}
    for part in sorted({places[e] for e in chosen}):
        ids = [e for e in chosen if places[e] == part]
        found |= zip(ids, load_episodes(tables, part, ids), strict=True)
    return [Chosen(found[episode], why) for episode, why in chosen.items()]


def _by_turns(pool: pl.DataFrame, count: int) -> Iterator[tuple[str, str]]:
    with_return = pool.filter(pl.col("return").is_not_null())
    orders = {
        "best": with_return.sort("return", "chance", descending=[True, False]),
        "worst": with_return.sort("return", "chance"),
        "failed": pool.filter(pl.col("status") != OK).sort("chance"),
        "random": pool.sort("chance"),
    }
    queues = {kind: orders[kind]["episode_id"].to_list()[::-1] for kind in KINDS}
    taken: set[str] = set()
    while len(taken) < count and any(queues.values()):
        for kind, queue in queues.items():
            while queue and queue[-1] in taken:
                queue.pop()
            if queue and len(taken) < count:
                taken.add(queue[-1])
                yield queue.pop(), kind


def _pool(tables: Mapping[str, TableRef], seed: int, metric: str | None) -> pl.DataFrame:
    """Every episode: its id, status, part, mean return or metric if it has one, and a number by chance."""
    parts = []
    for index in range(len(tables["episodes"].parts)):
        episodes = pl.DataFrame(tables["episodes"].read_part(index, ["episode_id", "status"]))
        values = values_of(tables, index, metric)
        returns = pl.Series([values.get(e) for e in episodes["episode_id"]], dtype=pl.Float64)
        joined = episodes.with_columns(returns.alias("return"))
        parts.append(joined.with_columns(part=pl.lit(index, pl.Int64)))
    if not parts:
        return pl.DataFrame(
            schema={
                "episode_id": pl.String,
                "status": pl.String,
                "return": pl.Float64,
                "part": pl.Int64,
                "chance": pl.Int64,
            }
        )
    pool = pl.concat(parts)
    chance = [seed_for(seed, "sample of episodes", episode) for episode in pool["episode_id"]]
    return pool.with_columns(chance=pl.Series(chance, dtype=pl.Int64))
