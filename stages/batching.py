"""Which row goes to which rank, optimizer step and forward pass: pure planning over lengths.

Nothing is dropped or repeated to make sizes divide: mini-batches differ by one row at most, ranks
may get unequal counts, or none, and the trainer divides by the global token count.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from workflows.trajectory import TURN_KEYS, seed_for

PLAN_COLUMNS: Final = ("rank", "mini_batch", "micro_batch")


@dataclass(frozen=True, slots=True)
class Bundle:
    """Rows that stay together, and how many tokens a forward pass over them has."""

    rows: list[int]
    tokens: int


def plan_batches(
    rows: pl.DataFrame,
    *,
    ranks: int,
    mini_batches: int,
    micro_batch_tokens: int,
    seed: int,
    shared_prefix: bool = False,
) -> pl.DataFrame:
    """Place every row; the result has the keys, `num_tokens` and `PLAN_COLUMNS`, sorted by place and key.

    `rows` has the turn keys, `num_prompt_tokens` and `num_response_tokens`; its order does not matter.
    With `shared_prefix` the trainer pads nothing and computes a prompt that rows of a micro-batch share
    once; `rows` then has `prompt`, equal for equal prompts, and rows with the same one stay together
    as far as they fit a micro-batch and a rank's share.

    - mini_batch: one optimizer step of an epoch over all ranks. A seeded random split of the rows; as
      many as there are rows, if that is fewer than `mini_batches`.
    - rank: within a mini-batch, largest first to the rank with the fewest tokens, so that two ranks
      differ by at most the largest (LPT, Graham 1969).
    - micro_batch: one forward pass of a rank, numbered from 0 in each mini-batch: as many rows as fit
      `micro_batch_tokens`, when all are padded to the longest (rows of similar length share one), or
      without padding and with shared prompts counted once. A row that is longer by itself goes alone.
    """
    rows = _shuffled(rows, seed, shared_prefix)
    number = min(mini_batches, rows.height)
    lengths = rows["num_tokens"].to_list()
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(lengths)
    for mini_batch in range(number):
        start, end = (rows.height * k // number for k in (mini_batch, mini_batch + 1))
        if shared_prefix:
            bundles = _bundles(rows[start:end], start, ranks, micro_batch_tokens)
        else:
            bundles = [Bundle([row], lengths[row]) for row in range(start, end)]
        bundles.sort(key=lambda bundle: -bundle.tokens)  # stable: ties stay shuffled
        for rank, mine in enumerate(_share(bundles, ranks)):
            cut = _fill if shared_prefix else _cut_padded
            for micro_batch, batch in enumerate(cut(mine, micro_batch_tokens)):
                for row in batch:
                    places[row] = (rank, mini_batch, micro_batch)
    plan = pl.DataFrame(places, schema=dict.fromkeys(PLAN_COLUMNS, pl.Int32), orient="row")
    return rows.select(*TURN_KEYS, "num_tokens").hstack(plan).sort(*PLAN_COLUMNS, *TURN_KEYS)


def _shuffled(rows: pl.DataFrame, seed: int, shared_prefix: bool) -> pl.DataFrame:
    """Rows in an order that depends on their keys and the seed alone, with `num_tokens`; rows with the
    same prompt next to each other where that is to be shared."""
    draw = [seed_for(seed, *key) for key in rows.select(TURN_KEYS).iter_rows()]
    rows = rows.with_columns(
        num_tokens=pl.col("num_prompt_tokens").cast(pl.Int64) + pl.col("num_response_tokens"),
        _draw=pl.Series(draw, dtype=pl.Int64),
    )
    if shared_prefix:
        # a row without a prompt's name shares with none
        rows = rows.with_columns(prompt=pl.coalesce("prompt", pl.concat_str(TURN_KEYS, separator="/")))
        drawn = [seed_for(seed, prompt) for prompt in rows["prompt"]]
        rows = rows.with_columns(_prompt_draw=pl.Series(drawn, dtype=pl.Int64))
        return rows.sort("_prompt_draw", "prompt", "_draw", *TURN_KEYS)
    return rows.sort("_draw", *TURN_KEYS)


def _bundles(rows: pl.DataFrame, offset: int, ranks: int, budget: int) -> list[Bundle]:
    """Runs of rows with the same prompt, cut where they outgrow a micro-batch or a rank's share."""
    columns = ("prompt", "num_prompt_tokens", "num_response_tokens")
    table = list(rows.select(columns).iter_rows())
    prompts = {prompt: tokens for prompt, tokens, _ in table}
    total = sum(prompts.values()) + sum(response for *_, response in table)
    limit = min(budget, -(-total // ranks))
    bundles: list[Bundle] = []
    last = None
    for index, (prompt, prompt_tokens, response_tokens) in enumerate(table, start=offset):
        if prompt == last and bundles[-1].tokens + response_tokens <= limit:
            bundles[-1] = Bundle([*bundles[-1].rows, index], bundles[-1].tokens + response_tokens)
        else:
            bundles.append(Bundle([index], prompt_tokens + response_tokens))
        last = prompt
    return bundles


def _share(bundles: Sequence[Bundle], ranks: int) -> list[list[Bundle]]:
    """Each rank's bundles, in the order given."""
    shares: list[list[Bundle]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for bundle in bundles:
        load, rank = loads[0]
        shares[rank].append(bundle)
        heapq.heapreplace(loads, (load + bundle.tokens, rank))
    return shares


def _cut_padded(bundles: Sequence[Bundle], budget: int) -> list[list[int]]:
    """Runs of rows (longest first) whose padded size, rows times the first length, fits the budget."""
    batches: list[list[int]] = []
    longest = 0
    for bundle in bundles:
        if batches and (len(batches[-1]) + 1) * longest <= budget:
            batches[-1] += bundle.rows
        else:
            batches.append(list(bundle.rows))
            longest = bundle.tokens
    return batches


def _fill(bundles: Sequence[Bundle], budget: int) -> list[list[int]]:
    """Forward passes filled by bundles, largest first, each into the emptiest that has room."""
    batches: list[list[int]] = []
    loads: list[tuple[int, int]] = []
    for bundle in bundles:
        if loads and loads[0][0] + bundle.tokens <= budget:
            load, batch = loads[0]
            batches[batch] += bundle.rows
            heapq.heapreplace(loads, (load + bundle.tokens, batch))
        else:
            heapq.heappush(loads, (bundle.tokens, len(batches)))
            batches.append(list(bundle.rows))
    return batches
