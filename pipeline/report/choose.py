"""Which episodes a report shows, where there are more than it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.store.episodes import spread, values_of
from pipeline.store.finished import Finished
from stages.tables.parquet import TableRef


@dataclass(frozen=True, slots=True)
class Chosen:
    """Ids of the episodes to show, by place and part, of `total` that there are; `how` says by what rule."""

    ids: tuple[tuple[frozenset[str], ...], ...]
    shown: int
    total: int
    how: str | None  # None: all of them are shown


def choose(places: Sequence[Finished], limit: int) -> Chosen:
    """At most `limit` episodes, shared evenly among the places, and within one spread over its returns.

    A place gets at least one; the same tables give the same choice.
    """
    by_part = [_ids_by_part(place.tables) for place in places]
    counts = [sum(len(ids) for ids in parts) for parts in by_part]
    total = sum(counts)
    if total <= limit:
        return Chosen(tuple(tuple(frozenset(p) for p in parts) for parts in by_part), total, total, None)
    shares = _shares(counts, limit)
    kept = [
        frozenset(spread([e for ids in parts for e in ids], _values(place.tables), share))
        for place, parts, share in zip(places, by_part, shares, strict=True)
    ]
    ids = tuple(tuple(frozenset(p) & keep for p in parts) for parts, keep in zip(by_part, kept, strict=True))
    shown = sum(len(k) for k in kept)
    measure = "score" if any("evaluation" in place.tables for place in places) else "return"
    each = "of every iteration " if len(places) > 1 else ""
    how = f"{each}evenly from the lowest {measure} to the highest; failed ones count as the lowest"
    return Chosen(ids, shown, total, how)


def _shares(counts: Sequence[int], limit: int) -> list[int]:
    """`limit` in equal shares; what a place can't use goes to the others, and each gets at least one."""
    shares = [min(1, count) for count in counts]
    left = limit - sum(shares)
    while left > 0 and (open_ := [i for i, count in enumerate(counts) if shares[i] < count]):
        for i in open_[:left]:
            shares[i] += 1
        left -= min(left, len(open_))
    return shares


def _ids_by_part(tables: Mapping[str, TableRef]) -> list[list[str]]:
    if "episodes" not in tables:
        return []
    episodes = tables["episodes"]
    return [
        episodes.read_part(i, ["episode_id"])["episode_id"].to_pylist() for i in range(len(episodes.parts))
    ]


def _values(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """The score or return of each episode, which orders them."""
    by_episode: dict[str, float] = {}
    for index in range(len(tables["episodes"].parts) if "episodes" in tables else 0):
        by_episode |= values_of(tables, index)
    return by_episode
