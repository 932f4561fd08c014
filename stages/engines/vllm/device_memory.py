"""Device memory of a vLLM engine on CUDA, by formulas: nothing of it was measured on a GPU."""

from __future__ import annotations

from typing import Final

from stages.engines.base import EngineSpec, adapters_gib
from stages.engines.vllm.arguments import cache_bytes
from stages.process.devices import CONTEXT_GIB, CUDA_PROCESS_GIB, DeviceNeed
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.dimensions import Dimensions, dimensions_of
from stages.weights.precision import weights_gib

BATCHED_TOKENS: Final = 8192  # of a step, which vLLM takes on a device of 70 GiB and more; else fewer
GRAPHS_GIB: Final = 0.02  # of CUDA graphs for each layer: an assumption
_GIB: Final = 2**30


def vllm_need(spec: EngineSpec, device_gib: float) -> DeviceNeed:
    """What an engine needs of each of its devices: the share that `gpu_memory_fraction` gives it, and graphs.

    vLLM fills its share: weights, over the devices of its tensor parallelism; the workspace of a step; and
    the cache with all that is left (vLLM's documentation, "Conserving memory"). CUDA graphs come on top. At
    sleep level 1 weights go to main memory and the cache is dropped; context and graphs stay ("Sleep mode").

    The share must hold the cache of one sequence of `max_model_len`: 2 · layers · key heads · head size ·
    bytes a token (arXiv:2309.06180, section 3). Of a device of unknown size, 0 GiB, nothing is asked.
    """
    devices = max(1, int(spec.num_gpus))
    info, sizes = describe_checkpoint(spec.checkpoint), dimensions_of(spec.checkpoint)
    weights = weights_gib(info, spec.dtype, spec.num_gpus)
    share = float(spec.options.get("gpu_memory_utilization", spec.gpu_memory_fraction)) * device_gib
    fixed = {
        "weights": weights / devices + adapters_gib(spec),
        "workspace": _workspace_gib(spec, sizes, devices),
    }
    sequence = cache_bytes(spec, info.dtype) / _GIB / devices
    cache = share - CONTEXT_GIB - sum(fixed.values())
    graphs = 0.0 if spec.options.get("enforce_eager") else GRAPHS_GIB * (sizes.layers if sizes else 32)
    problem = None
    if device_gib and (cache < sequence or cache <= 0):
        least = CONTEXT_GIB + sum(fixed.values()) + max(sequence, 0.1)
        problem = (
            f"models.{spec.base_id}.gpu_memory_fraction = {spec.gpu_memory_fraction:g} is {share:.1f} GiB "
            f"of a device of {device_gib:.0f} GiB, but its engine needs about {least:.1f}: context "
            f"{CONTEXT_GIB:.1f}, "
            + ", ".join(f"{name} {gib:.1f}" for name, gib in fixed.items())
            + f", cache for one sequence of max_model_len = {spec.max_model_len} tokens {sequence:.2f}; "
            + _remedy(spec, least / device_gib, devices)
        )
    notes = {"sequences": cache / sequence} if sequence and cache > 0 else {}
    return DeviceNeed(
        kept={"CUDA context": CONTEXT_GIB, "CUDA graphs": graphs},
        working={**fixed, "cache": max(cache, 0.0)},
        host=CUDA_PROCESS_GIB * devices + weights,
        problem=problem,
        notes=notes,
    )


def _remedy(spec: EngineSpec, least: float, devices: int) -> str:
    if least <= 0.95:
        return f"set it to {least + 0.05:.2f} or more, or lower max_model_len"
    return f"give it more devices (models.{spec.base_id}.num_gpus = {2 * devices}), or lower max_model_len"


def _workspace_gib(spec: EngineSpec, sizes: Dimensions | None, devices: int) -> float:
    """GiB of the largest step: two halves of the feed-forward and four states of each of its tokens, in 2
    bytes, and three float32 copies of the logits of each sequence."""
    if sizes is None:
        return 1.0
    tokens = int(spec.options.get("max_num_batched_tokens", BATCHED_TOKENS))
    states = tokens * 2 * (2 * sizes.feed_forward / devices + 4 * sizes.width)
    return (states + spec.max_batch_size * sizes.vocabulary * 12) / _GIB
