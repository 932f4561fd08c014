"""Can a classifier tell two plays of a team apart by the contexts of one unit? Its success bounds how far
these are from each other, whatever moved them: teammates, tools, routing, an environment. Pure.

A classifier that is right with balanced accuracy b proves a total variation of at least 2 b - 1 (the
classifier two-sample test of arXiv:1610.06545). Contexts are counts of token ids, hashed; the classifier is a
linear discriminant with a ridge; tasks that it is judged on are not those that it has learned from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stages.tables.parquet import TableRef
from workflows.vocabulary import Event

Floats = npt.NDArray[np.float64]
DIMENSIONS: Final = 256
FOLDS: Final = 5
ROWS: Final = 2000  # of each side, at most
LEAST: Final = 20  # of each side
RIDGE: Final = 0.1  # of the mean variance
_COLUMNS: Final = ("block", "task_id", "model_id", "event", "prompt_token_ids")


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts of one unit in one block: features (rows, DIMENSIONS), and the fold of each row's task."""

    features: Floats
    folds: npt.NDArray[np.int64]


def drift(turns: TableRef, unit: str, before: int, after: int) -> tuple[float, float] | None:
    """2 b - 1 of the unit's contexts in the plays of two blocks, and its standard error.

    About 0 where nothing differs (below it by chance), 1 where a context says which block it is of. None
    where a side has fewer than `LEAST` contexts, or all are of one fold of tasks.
    """
    return told_apart(contexts_of(turns, unit, before), contexts_of(turns, unit, after))


def contexts_of(turns: TableRef, unit: str, block: int) -> Contexts:
    """The contexts of a unit in the plays of a block: evenly chosen where there are more than `ROWS`."""
    rows: list[dict[str, Any]] = []
    for index in range(len(turns.parts)):
        part = turns.read_part(index, list(_COLUMNS)).to_pylist()
        rows += [
            row
            for row in part
            if (row["block"] or 0) == block and row["model_id"] == unit and row["event"] == Event.LLM
        ]
    count = min(len(rows), ROWS)
    chosen = [rows[place * len(rows) // count] for place in range(count)]
    features = [counts_of(row["prompt_token_ids"] or []) for row in chosen]
    folds = [fold_of(row["task_id"]) for row in chosen]
    return Contexts(np.array(features).reshape(count, DIMENSIONS), np.array(folds, dtype=np.int64))


def counts_of(token_ids: Sequence[int]) -> Floats:
    """log(1 + count) of hashed token ids: (DIMENSIONS,)."""
    hashed = (np.asarray(token_ids, dtype=np.uint64) * np.uint64(2654435761)) >> np.uint64(16)
    return np.log1p(np.bincount((hashed % np.uint64(DIMENSIONS)).astype(np.int64), minlength=DIMENSIONS))


def fold_of(task_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(task_id.encode(), digest_size=4).digest(), "big") % FOLDS


def told_apart(one: Contexts, other: Contexts) -> tuple[float, float] | None:
    """See `drift`."""
    if min(len(one.folds), len(other.folds)) < LEAST:
        return None
    right: tuple[list[float], list[float]] = ([], [])
    for fold in range(FOLDS):
        learned = [side.features[side.folds != fold] for side in (one, other)]
        judged = [side.features[side.folds == fold] for side in (one, other)]
        if min(map(len, learned)) < 2:
            return None
        direction, middle = _discriminant(*learned)
        right[0].extend(judged[0] @ direction < middle)
        right[1].extend(judged[1] @ direction > middle)
    shares = [float(np.mean(side)) for side in right]
    error = math.sqrt(sum(s * (1 - s) / len(side) for s, side in zip(shares, right, strict=True)))
    return sum(shares) - 1, error


def _discriminant(one: Floats, other: Floats) -> tuple[Floats, float]:
    """The direction in which two clouds differ most for their spread, and the middle between their means."""
    means = [side.mean(axis=0) for side in (one, other)]
    spread = sum(np.cov(side, rowvar=False) for side in (one, other)) / 2
    ridge = RIDGE * max(float(np.trace(spread)) / DIMENSIONS, 1e-12)
    direction: Floats = np.linalg.solve(spread + ridge * np.eye(DIMENSIONS), means[1] - means[0])
    return direction, float(direction @ (means[0] + means[1]) / 2)
