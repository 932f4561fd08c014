"""Which row goes to which rank, optimizer step and forward pass: pure planning over lengths.

Nothing is dropped or repeated to make sizes divide: mini-batches differ by one row at most, ranks
may get unequal counts, or none, and the trainer divides by the global token count.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import polars as pl

from workflows.trajectory import TURN_KEYS, seed_for

PLAN_COLUMNS: Final = ("rank", "mini_batch", "micro_batch")


def plan_batches(
    rows: pl.DataFrame, *, ranks: int, mini_batches: int, micro_batch_tokens: int, seed: int
) -> pl.DataFrame:
    """Place every row; the result has the keys, `num_tokens` and `PLAN_COLUMNS`, sorted by place and key.

    `rows` has the turn keys, `num_prompt_tokens` and `num_response_tokens`; its order does not matter.

    - mini_batch: one optimizer step of an epoch over all ranks. A seeded random split of the rows; as
      many as there are rows, if that is fewer than `mini_batches`.
    - rank: within a mini-batch, longest row first to the rank with the fewest tokens, so that two
      ranks differ by at most the longest row (LPT, Graham 1969).
    - micro_batch: one forward pass of a rank, numbered from 0 in each mini-batch. Rows of similar
      length share one, longest first, as many as fit `micro_batch_tokens` when all are padded to the
      longest; a row that is longer than this by itself goes alone.
    """
    rows = _shuffled(rows, seed)
    number = min(mini_batches, rows.height)
    lengths = rows["num_tokens"].to_list()
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(lengths)
    for mini_batch in range(number):
        members = range(rows.height * mini_batch // number, rows.height * (mini_batch + 1) // number)
        longest_first = sorted(members, key=lambda row: -lengths[row])  # stable: ties stay shuffled
        for rank, its_rows in enumerate(_share(longest_first, lengths, ranks)):
            for micro_batch, batch in enumerate(_cut(its_rows, lengths, micro_batch_tokens)):
                for row in batch:
                    places[row] = (rank, mini_batch, micro_batch)
    plan = pl.DataFrame(places, schema=dict.fromkeys(PLAN_COLUMNS, pl.Int32), orient="row")
    return rows.hstack(plan).sort(*PLAN_COLUMNS, *TURN_KEYS)


def _shuffled(rows: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Rows in an order that depends on their keys and the seed alone, with `num_tokens`."""
    draw = [seed_for(seed, *key) for key in rows.select(TURN_KEYS).iter_rows()]
    return (
        rows.select(
            *TURN_KEYS,
            num_tokens=pl.col("num_prompt_tokens").cast(pl.Int64) + pl.col("num_response_tokens"),
            _draw=pl.Series(draw, dtype=pl.Int64),
        )
        .sort("_draw", *TURN_KEYS)
        .drop("_draw")
    )


def _share(rows: Sequence[int], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Each rank's rows, in the order of `rows`."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for row in rows:
        load, rank = loads[0]
        shares[rank].append(row)
        heapq.heapreplace(loads, (load + lengths[row], rank))
    return shares


def _cut(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Runs of `rows` (longest first) whose padded size, rows times the first length, fits the budget."""
    batches: list[list[int]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
