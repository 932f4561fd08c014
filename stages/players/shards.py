"""A shard of a rollout on disk: its two tables, its receipt, and what of it is still to be played.

A shard is committed when its receipt is there. Episodes of a committed shard that failed for a cause which is
not the policy's are played again when an unfinished rollout goes on: their keys and seeds are the same, and
all other rows stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute

from stages.tables.filesystem import filesystem
from stages.tables.parquet import Part, TableRef, TableSink
from workflows.playing.base_episode import BASE_COLUMNS, BaseEpisode
from workflows.trajectory import EPISODES, TURNS
from workflows.vocabulary import Status

SHARDS: Final = "shards"  # folder of the receipts, within that of the rollout


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of an iteration's tasks to be played, and where its tables go."""

    index: int
    iteration: int
    group_size: int
    tasks: TableRef
    sinks: Mapping[str, TableSink]
    receipts: str  # folder of the receipts; a shard is committed when its receipt is there
    block: int = 0
    base: TableRef | None = None  # turns of the episodes that these begin with, in parts as `tasks` has them
    first_sample: int = 0  # of each task

    @property
    def samples(self) -> range:
        """The numbers of the plays of each task."""
        return range(self.first_sample, self.first_sample + self.group_size)

    @property
    def receipt_uri(self) -> str:
        return receipt_uri(self.receipts, self.index)

    @property
    def num_episodes(self) -> int:
        return self.tasks.parts[self.index].rows * self.group_size


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of a committed shard that stay when its failed episodes are played again."""

    turns: pa.Table
    episodes: pa.Table
    times_played: int = 0  # before this time
    files: Sequence[str] = ()  # URLs of the tables that the new ones replace

    @property
    def plays(self) -> frozenset[tuple[str, int]]:
        """`(task_id, sample)` of every episode that stays."""
        return frozenset(zip(*(self.episodes[c].to_pylist() for c in ("task_id", "sample")), strict=True))


def bases_of(shard: Shard) -> dict[tuple[str, int], BaseEpisode]:
    """The episodes that those of a shard begin with, by `(task_id, sample)`; none where it has no base.

    What is not served of them is sampled as the alternative of the shard's block.
    """
    if shard.base is None:
        return {}
    episodes: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in shard.base.read_part(shard.index, BASE_COLUMNS).to_pylist():
        episodes.setdefault((row["task_id"], row["sample"]), []).append(row)
    return {play: BaseEpisode.of(rows, alternative=shard.block) for play, rows in episodes.items()}


def receipt_uri(folder: str, index: int) -> str:
    return f"{folder}/{index:05d}.json"


def read_receipt(uri: str) -> dict[str, Any] | None:
    fs, path = filesystem(uri)
    try:
        receipt: dict[str, Any] = json.loads(fs.cat_file(path))
    except FileNotFoundError:
        return None
    return receipt


def num_failed(receipt: Mapping[str, Any]) -> int:
    """How many episodes of a committed shard failed for a cause that is not the policy's."""
    return sum(int(kind["count"]) for kind in receipt["failed"].values())


def kept_of(shard: Shard) -> Kept:
    """What stays of a shard that is about to be played: no rows where it was never committed."""
    receipt = read_receipt(shard.receipt_uri)
    if receipt is None:
        return Kept(TURNS.empty_table(), EPISODES.empty_table())
    parts = {table: Part(**receipt["parts"][table]) for table in shard.sinks}
    rows = {table: sink.ref([parts[table]]).read_part(0) for table, sink in shard.sinks.items()}
    episodes = rows["episodes"].filter(compute.equal(rows["episodes"]["status"], str(Status.OK)))
    stays = compute.is_in(rows["turns"]["episode_id"], value_set=episodes["episode_id"])
    return Kept(
        rows["turns"].filter(stays),
        episodes,
        times_played(receipt),
        [f"{sink.folder}/{parts[table].name}" for table, sink in shard.sinks.items()],
    )


def times_played(receipt: Mapping[str, Any]) -> int:
    """How often a shard was played until its receipt: 1, and 1 more whenever failed episodes came again."""
    return int(receipt.get("times_played", 1))
