"""Generalised advantage estimation over the tokens of a turn, and over the turns of an episode.

Two clocks run. Within a turn a step is a token, with `gamma` and `lam`; from a turn's last token to
the first token of the next turn a step is a turn, with `turn_gamma` and `turn_lam`. With r the token's
reward and V its value:

    delta[t] = r[t] + gamma * V[t+1] - V[t]            A[t] = delta[t] + gamma * lam * A[t+1]

and at a turn's last token the next value and advantage are those of the next turn's first token, with
the turn's own factors. The advantage of a turn's first token is then a straight line in what comes
after the turn, `own + decay * (turn_gamma * V' + turn_gamma * turn_lam * A')`, so that turns which
different models spoke, and which lie in different tables, are chained with three numbers each.

The next turn is the episode's next one that is trained, by `turn_index`: turns of tools and of frozen
models, and turns that were left out, have no value and no reward, are skipped and do not discount.
Parallel branches are taken one after the other, in the order of `turn_index`. After the last turn the
episode has ended and is worth 0, unless a bootstrap value is given.
Source: GAE, arXiv:1506.02438; two clocks as in turn-level PPO, arXiv:2505.11821.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from stages.token_advantages.ragged import (
    Bools,
    Floats,
    Ints,
    first_tokens,
    kept_lengths,
    last_tokens,
    scatter,
    suffix_sums,
)
from workflows.trajectory import TURN_KEYS

SUMMARY: Final = {
    "episode_id": pl.String,
    "turn_index": pl.Int32,
    "first_value": pl.Float64,
    "own": pl.Float64,  # advantage of the first token if nothing came after the turn
    "decay": pl.Float64,  # what reaches it of what comes after
    "bootstrap": pl.Float64,
}
CARRY: Final = {
    "episode_id": pl.String,
    "turn_index": pl.Int32,
    "next_value": pl.Float64,
    "next_advantage": pl.Float64,
}


@dataclass(frozen=True, slots=True)
class Gae:
    """The discounts; see the module. `across_turns = False` ends the world at the end of every turn."""

    gamma: float = 1.0
    lam: float = 1.0
    turn_gamma: float = 1.0
    turn_lam: float = 1.0
    across_turns: bool = False


def gae(
    gae: Gae,
    rewards: Floats,
    values: Floats,
    mask: Bools,
    lengths: Ints,
    next_value: Floats,
    next_advantage: Floats,
) -> Floats:
    """Advantages of every token (N,); 0 where not `mask`, whose rewards and values are never read.

    `next_value` and `next_advantage` (M,) are those of what follows each turn. Every turn must keep a
    token.
    """
    kept = kept_lengths(mask, lengths)
    rewards, values = rewards[mask], values[mask]
    last = last_tokens(kept)
    following = np.append(values[1:], 0.0)
    deltas = rewards + gae.gamma * following - values
    deltas[last] = (
        rewards[last]
        + gae.turn_gamma * next_value
        - values[last]
        + gae.turn_gamma * gae.turn_lam * next_advantage
    )
    return scatter(suffix_sums(deltas, kept, gae.gamma * gae.lam), mask)


def summarise(
    method: Gae,
    keys: pl.DataFrame,
    rewards: Floats,
    values: Floats,
    mask: Bools,
    lengths: Ints,
    bootstrap: Floats,
) -> pl.DataFrame:
    """Each turn as a straight line in what follows it: the columns of `SUMMARY`, in the order of `keys`."""
    kept = kept_lengths(mask, lengths)
    nothing = np.zeros(len(lengths))
    own = gae(method, rewards, values, mask, lengths, nothing, nothing)[mask]
    first = first_tokens(kept)
    return keys.select(
        *TURN_KEYS,
        first_value=pl.Series(values[mask][first], dtype=pl.Float64),
        own=pl.Series(own[first], dtype=pl.Float64),
        decay=pl.Series((method.gamma * method.lam) ** (kept - 1.0), dtype=pl.Float64),
        bootstrap=pl.Series(bootstrap, dtype=pl.Float64),
    )


def chain(method: Gae, turns: pl.DataFrame) -> pl.DataFrame:
    """What follows each turn: the columns of `CARRY`, sorted by key, from all turns' `SUMMARY`."""
    turns = turns.sort(TURN_KEYS)
    left = turns.select(pl.int_range(pl.len()).reverse().over("episode_id")).to_series().to_numpy()
    value, first = turns["bootstrap"].to_numpy().copy(), turns["first_value"].to_numpy()
    own, decay = turns["own"].to_numpy(), turns["decay"].to_numpy()
    advantage = np.zeros(turns.height)
    if not method.across_turns:
        left = np.zeros_like(left)  # every turn is its episode's last
    # backwards through all episodes at once: a turn's successor is the next row
    by_distance = np.argsort(left, kind="stable")
    edges = np.searchsorted(left[by_distance], np.arange(1, left.max(initial=0) + 2))
    for start, end in pairwise(edges):
        rows = by_distance[start:end]
        later = rows + 1
        value[rows] = first[later]
        beyond = method.turn_gamma * (value[later] + method.turn_lam * advantage[later])
        advantage[rows] = own[later] + decay[later] * beyond
    return turns.select(
        *TURN_KEYS,
        next_value=pl.Series(value, dtype=pl.Float64),
        next_advantage=pl.Series(advantage, dtype=pl.Float64),
    )
