"""The parts of metric names: `role/<role>/…`, `model/<model>/…`, `time/<stage>_seconds`.

`docs/metrics.md` lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_NAMES: Final = 32  # roles, models, rewards or reasons that get metrics of their own; the most frequent


def words(sentence: str) -> str:
    """A boundary or reason as one component; unlike a slug, two that look alike may share one."""
    return re.sub(r"\W+", "_", sentence).strip("_")[:60] or "unnamed"


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """The MAX_NAMES names with the highest counts, highest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MAX_NAMES])


def by_name(metrics: Mapping[str, float], kind: str) -> dict[str, dict[str, float]]:
    """The metrics `<kind>/<name>/<metric>` as `{name: {metric: value}}`: one entry a role or model."""
    table: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        parts = key.split("/")
        if len(parts) == 3 and parts[0] == kind:
            table.setdefault(parts[1], {})[parts[2]] = value
    return table
