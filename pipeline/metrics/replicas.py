"""What each replica of an engine answered in an iteration: `replica/<base>.<number>/calls` and so on.

Engines of one replica have no such metrics. Callers count, so the death of a replica loses no number.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.metrics.names import most_frequent
from pipeline.settings.names import slug


def replica_metrics(counts: Mapping[str, Mapping[int, Mapping[str, int]]]) -> dict[str, float]:
    """The metrics of an iteration, with `cached_rate`, the share of prompt tokens in the prefix cache.

    Args:
        counts: by base and number, as `Fleet.replica_counts` gives them. Without any call there is nothing to
            tell: the iteration was played before.
    """
    named = {f"{slug(base)}.{n}": each for base, numbers in counts.items() for n, each in numbers.items()}
    calls = most_frequent({name: each["calls"] for name, each in named.items()})
    if not any(calls.values()):
        return {}
    metrics: dict[str, float] = {}
    for name in calls:
        each = named[name]
        metrics |= {f"replica/{name}/{count}": float(value) for count, value in each.items()}
        if each["prompt_tokens"]:
            metrics[f"replica/{name}/cached_rate"] = each["cached_tokens"] / each["prompt_tokens"]
    return metrics
