"""The cost of a run: tokens, seconds, memory and parameters, under names that all sharing regimes share.

An iteration has its own numbers and, under `total/`, those of the run up to then, so that any tracker
can draw a return against what it has cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.settings.names import slug

GIB: Final = 2**30
TRAINED: Final = "update/tokens_trained"
PEAK_MEMORY: Final = "memory/peak_gib"

# What adds up over iterations: the name of the total and the metrics of one iteration.
_ADDED: Final = {
    "sampled_tokens": ("rollout/response_tokens", "greedy/response_tokens"),
    "prompt_tokens": ("rollout/prompt_tokens", "greedy/prompt_tokens"),
    "replayed_tokens": ("counterfactual/tokens",),
    "trial_tokens": ("trial/response_tokens",),
    "trained_tokens": (TRAINED,),
    "episodes": ("rollout/episodes", "greedy/episodes"),
    "seconds": ("time/total_seconds",),
}


def cost_metrics(
    metrics: Mapping[str, float], memory: Mapping[str, int], before: Mapping[str, float]
) -> dict[str, float]:
    """The cost of one iteration, and the total cost of the run up to it.

    Args:
        metrics: of the iteration, from its tables.
        memory: bytes by `engine/<base>` and `trainer/<base>`, as `Fleet.peak_memory` gives.
        before: the `total_cost` of the iterations before it.
    """
    costs = {TRAINED: tokens_trained(metrics)}
    if memory:
        costs |= {
            f"memory/{'/'.join(slug(p) for p in who.split('/', 1))}_peak_gib": bytes_ / GIB
            for who, bytes_ in memory.items()
        }
        costs[PEAK_MEMORY] = sum(memory.values()) / GIB
    now = total_cost([{**metrics, **costs}])
    return costs | {f"total/{n}": before.get(n, 0.0) + now[n] for n in _ADDED if n in now}


def tokens_trained(metrics: Mapping[str, float]) -> float:
    """Response tokens in the losses of all models."""
    names = [n for n in metrics if n.startswith("model/") and n.endswith("/tokens_trained")]
    return math.fsum(metrics[n] for n in names)


def total_cost(iterations: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The cost of a run from the metrics of its iterations; what none of them measured is left out.

    `sampled_tokens` and `prompt_tokens` are those of training's episodes, greedy ones too, `trained_tokens`
    response tokens in losses, `seconds` those of the iterations' stages, with the start of engines and
    trainers in the first; evaluations are in none of them. `peak_memory_gib` is the sum of what each engine
    and trainer process has needed at most in main memory.
    """
    iterations = [{TRAINED: tokens_trained(m), **m} for m in iterations]
    totals = {}
    for name, of_iteration in _ADDED.items():
        values = [m[metric] for m in iterations for metric in of_iteration if metric in m]
        if values:
            totals[name] = math.fsum(values)
    if peaks := [m[PEAK_MEMORY] for m in iterations if PEAK_MEMORY in m]:
        totals["peak_memory_gib"] = max(peaks)
    return totals
