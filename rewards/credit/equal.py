"""When two returns count as equal: sums of the same rewards in another order differ by rounding.

Returns that are closer than a billionth of the larger one, or than 1e-12, are equal: a group of such
returns is silent, and the better of two is not the one that was rounded up.
"""

from __future__ import annotations

from typing import Final

import polars as pl

RELATIVE: Final = 1e-9
ABSOLUTE: Final = 1e-12


def tolerance(low: float, high: float) -> float:
    """How far apart numbers from `low` to `high` may be and count as equal."""
    return max(ABSOLUTE, RELATIVE * max(abs(low), abs(high)))


def tolerance_of(*columns: pl.Expr) -> pl.Expr:
    """The same as an expression, of the largest of the columns in each row."""
    largest = pl.max_horizontal([column.abs() for column in columns])
    return pl.max_horizontal(pl.lit(ABSOLUTE), RELATIVE * largest)


def are_equal(low: pl.Expr, high: pl.Expr) -> pl.Expr:
    """Whether two columns count as equal, row by row."""
    return (high - low).abs() <= tolerance_of(low, high)
