"""Which row goes to which rank, optimizer step and forward pass: pure planning over lengths.

Nothing is dropped or repeated to make sizes divide: mini-batches differ by one row at most, ranks
may get unequal counts, or none, and the trainer divides by the global token count.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from workflows.trajectory import TURN_KEYS, seed_for

PLAN_COLUMNS: Final = ("rank", "mini_batch", "micro_batch")

PASS_TOKENS: Final = 64
"""What a further forward pass costs besides its tokens, in tokens."""
_STEP: Final = 8  # tokens that have one name in `prefix_names`
_NAME: Final = 8  # bytes of a name
_HASH: Final = np.random.default_rng(20_261_201).integers(1 << 62, size=_STEP, dtype=np.uint64) * 2 + 1


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
    apart: bool = False,
) -> pl.DataFrame:
    """Place every row; the result has the keys, `num_tokens` and `PLAN_COLUMNS`, sorted by place and key.

    `rows` has the turn keys, `num_prompt_tokens` and `num_response_tokens`; its order does not matter.
    With `shared_prefix` the trainer pads nothing and computes what rows of a micro-batch begin with once.
    `rows` then has `prefix`, by `prefix_names`, and `prompt`, equal for equal prompts: rows with the same
    one go to the same optimizer step, as far as steps are even.

    - mini_batch: one optimizer step of an epoch over all ranks. A seeded random split of the rows; as
      many as there are rows, if that is fewer than `mini_batches`.
    - rank: within a mini-batch, largest first to the rank with the fewest tokens, so that two ranks
      differ by at most the largest (LPT, Graham 1969). With `shared_prefix`, rows in the order of their
      tokens are cut into as many equal parts as there are ranks, near places where little is shared.
    - micro_batch: one forward pass of a rank, numbered from 0 in each mini-batch: as many rows as fit
      `micro_batch_tokens`, when all are padded to the longest (rows of similar length share one), or
      without padding and with what is shared counted once, cut where that costs least. A row that is
      longer by itself goes alone.

    With `apart`, `rows` has `part`, and no micro-batch mixes two of them: what a backward pass brings is then
    the gradient of one part. Which optimizer step a row goes to stays the same.
    """
    rows = _shuffled(rows, seed, shared_prefix)
    parts = rows["part"].to_list() if apart else [""] * rows.height
    number = min(mini_batches, rows.height)
    lengths = rows["num_tokens"].to_list()
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(lengths)
    for mini_batch in range(number):
        start, end = (rows.height * k // number for k in (mini_batch, mini_batch + 1))
        if shared_prefix:
            shares = _trees(rows[start:end], start, ranks, micro_batch_tokens, parts[start:end])
        else:
            bundles = [Bundle([row], lengths[row]) for row in range(start, end)]
            bundles.sort(key=lambda bundle: -bundle.tokens)  # stable: ties stay shuffled
            shares = [
                [batch for group in _by_part(mine, parts) for batch in _cut_padded(group, micro_batch_tokens)]
                for mine in _share(bundles, ranks)
            ]
        for rank, batches in enumerate(shares):
            for micro_batch, batch in enumerate(batches):
                for row in batch:
                    places[row] = (rank, mini_batch, micro_batch)
    plan = pl.DataFrame(places, schema=dict.fromkeys(PLAN_COLUMNS, pl.Int32), orient="row")
    return rows.select(*TURN_KEYS, "num_tokens").hstack(plan).sort(*PLAN_COLUMNS, *TURN_KEYS)


def _by_part(bundles: Sequence[Bundle], parts: Sequence[str]) -> list[list[Bundle]]:
    """The bundles of each part, in the order of their names; the rows of a bundle are of one part."""
    groups: dict[str, list[Bundle]] = {}
    for bundle in bundles:
        groups.setdefault(parts[bundle.rows[0]], []).append(bundle)
    return [groups[part] for part in sorted(groups)]


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


def prefix_names(sequences: Iterable[Sequence[int] | np.ndarray]) -> list[bytes]:
    """For each token sequence a text of 8 bytes for every 8 tokens, equal where these tokens are.

    Sequences that begin alike have names that begin alike, and sorting names puts them side by side: so a
    plan can be made of what sequences share without the tokens themselves.
    """
    names = []
    for sequence in sequences:
        tokens = np.asarray(sequence, dtype=np.uint64)
        whole = len(tokens) // _STEP
        hashed = (tokens[: whole * _STEP].reshape(whole, _STEP) + 1) * _HASH  # modulo 2**64, as it should
        names.append(hashed.sum(axis=1, dtype=np.uint64).astype(">u8").tobytes())
    return names


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows in the order of their tokens, and what each adds to a forward pass that has the one before it."""

    rows: list[int]
    tokens: list[int]  # of the row
    shared: list[int]  # how many of them the row before has, too: what a cut in front of this row costs
    before: list[int]  # tokens that the rows in front add, one number more than there are rows

    def part(self, start: int, stop: int) -> _Walk:
        shared = [0, *self.shared[start + 1 : stop]][: stop - start]
        return _walk(self.rows[start:stop], self.tokens[start:stop], shared)


def _trees(
    rows: pl.DataFrame, offset: int, ranks: int, budget: int, parts: Sequence[str]
) -> list[list[list[int]]]:
    """By rank, by forward pass: numbers of rows, the first row of the frame being `offset`.

    A forward pass has rows of one of the `parts`, which share nothing with each other.
    """
    names, sizes = rows["prefix"].to_list(), rows["num_tokens"].to_list()
    order = sorted(range(len(names)), key=lambda row: (parts[row], names[row] or b"", row))
    pairs = pairwise(order)
    shared = [0, *(_shared(names[a], names[b]) if parts[a] == parts[b] else 0 for a, b in pairs)]
    tokens = [sizes[row] for row in order]
    whole = _walk([row + offset for row in order], tokens, shared[: len(order)])
    return [
        [forward for run in _runs(walk, offset, parts) for forward in _cut_trees(run, budget)]
        for walk in _over_ranks(whole, ranks)
    ]


def _runs(walk: _Walk, offset: int, parts: Sequence[str]) -> list[_Walk]:
    """The walk of each part, one after another."""
    of_rows = [parts[row - offset] for row in walk.rows]
    cuts = [place for place, (one, two) in enumerate(pairwise(of_rows), start=1) if one != two]
    return [walk.part(start, stop) for start, stop in pairwise([0, *cuts, len(walk.rows)])]


def _shared(one: bytes | None, other: bytes | None) -> int:
    """How many tokens two sequences surely begin with alike."""
    if not one or not other:
        return 0
    most = min(len(one), len(other)) // _NAME
    differ = np.frombuffer(one, ">u8", most) != np.frombuffer(other, ">u8", most)
    return _STEP * (int(differ.argmax()) if differ.any() else most)


def _walk(rows: list[int], tokens: list[int], shared: list[int]) -> _Walk:
    before = [0]
    for more, less in zip(tokens, shared, strict=True):
        before.append(before[-1] + more - less)
    return _Walk(rows, tokens, shared, before)


def _over_ranks(walk: _Walk, ranks: int) -> list[_Walk]:
    """The walk cut into a part for each rank, where parts come out even and little is shared."""
    cuts = [0]
    for rank in range(1, ranks):
        goal = walk.before[-1] * rank // ranks
        places = range(cuts[-1], len(walk.rows) + 1)
        cuts.append(min(places, key=lambda place: 2 * abs(walk.before[place] - goal) + _cost(walk, place)))
    cuts.append(len(walk.rows))
    return [walk.part(start, stop) for start, stop in pairwise(cuts)]


def _cost(walk: _Walk, place: int) -> int:
    """Tokens that a cut here makes both sides compute."""
    return walk.shared[place] if place < len(walk.rows) else 0


def _cut_trees(walk: _Walk, budget: int) -> list[list[int]]:
    """The walk as forward passes within the budget that compute the fewest tokens in all; of such cuts one
    whose largest pass is the smallest."""
    cost, passes = _cheapest(walk, budget)
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        smaller, even = _cheapest(walk, middle)
        if smaller <= cost:
            high, passes = middle, even
        else:
            low = middle + 1
    return passes


def _cheapest(walk: _Walk, budget: int) -> tuple[int, list[list[int]]]:
    """What the best forward passes within the budget cost, in tokens, and their rows.

    A pass over rows i to j-1 has `tokens[i] + before[j] - before[i+1]` tokens. So the best passes up to j end
    with the i of the smallest `best[i] + tokens[i] - before[i+1]` among those that fit; as j grows, i that
    no longer fit leave at one end of a queue, and i that can no longer be the best at the other.
    """
    count = len(walk.rows)
    best, start_of = [0] * (count + 1), [0] * (count + 1)
    queue: deque[tuple[int, int]] = deque()  # (what counts, i), the smallest first
    for stop in range(1, count + 1):
        new = stop - 1
        worth = best[new] + walk.tokens[new] - walk.before[stop]
        while queue and queue[-1][0] > worth:
            queue.pop()
        queue.append((worth, new))
        while queue[0][1] < new and _tokens_of(walk, queue[0][1], stop) > budget:
            queue.popleft()
        worth, start_of[stop] = queue[0]
        best[stop] = worth + walk.before[stop] + PASS_TOKENS
    passes: list[list[int]] = []
    stop = count
    while stop:
        passes.append(walk.rows[start_of[stop] : stop])
        stop = start_of[stop]
    return best[count], passes[::-1]


def _tokens_of(walk: _Walk, start: int, stop: int) -> int:
    return walk.tokens[start] + walk.before[stop] - walk.before[start + 1]


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
