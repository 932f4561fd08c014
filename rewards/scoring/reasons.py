"""Reasons why turns are left out, counted."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc


def kind_of(reason: str) -> str:
    """A reason without its details, so that reasons can be counted."""
    return reason.split(": ", 1)[0]


def count_kinds(reasons: pa.ChunkedArray) -> tuple[Counter[str], list[str]]:
    """How often each kind occurs, null aside, and the different reasons that have details, sorted."""
    kinds: Counter[str] = Counter()
    detailed = []
    for count in pc.value_counts(reasons).to_pylist():
        if (reason := count["values"]) is not None:
            kinds[kind_of(reason)] += count["counts"]
            if kind_of(reason) != reason:
                detailed.append(reason)
    return kinds, sorted(detailed)
