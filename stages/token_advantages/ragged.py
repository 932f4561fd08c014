"""Flat arrays of many rows: what a loop over each row's tokens would do, for all rows at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def kept_lengths(mask: Bools, lengths: Ints) -> Ints:
    """How many tokens of each row `mask` keeps, (M,)."""
    return np.bincount(row_of(lengths), weights=mask, minlength=len(lengths)).astype(np.int64)


def row_of(lengths: Ints) -> Ints:
    """The row that each token belongs to, (N,)."""
    return np.repeat(np.arange(len(lengths)), lengths)


def scatter(values: Floats, mask: Bools) -> Floats:
    """Values of the kept tokens back in their places, (N,); 0 elsewhere."""
    out = np.zeros(len(mask))
    out[mask] = values
    return out


def first_tokens(lengths: Ints) -> Ints:
    """Position of each row's first token, (M,). No row may be empty."""
    return np.cumsum(lengths) - lengths


def last_tokens(lengths: Ints) -> Ints:
    """Position of each row's last token, (M,). No row may be empty."""
    return np.cumsum(lengths) - 1


def suffix_sums(values: Floats, lengths: Ints, factor: float) -> Floats:
    """`y[t] = values[t] + factor * y[t + 1]` within each row, from its last token on, (N,)."""
    out = np.array(values, dtype=np.float64)
    if not len(lengths):
        return out
    longest_first = np.argsort(-lengths, kind="stable")
    # how many rows have more than k tokens, for k = 0, 1, …
    active = np.searchsorted(-lengths[longest_first], -np.arange(int(lengths.max())), side="left")
    places = (np.cumsum(lengths) - 1)[longest_first]
    for back, count in enumerate(active[1:], start=1):
        here = places[:count] - back
        out[here] += factor * out[here + 1]
    return out
