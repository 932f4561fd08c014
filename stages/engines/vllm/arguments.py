"""What vLLM is started with, and what it would refuse, read off the spec. Imports no vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from stages.engines.base import EngineSpec, check_length
from stages.weights.checkpoints import read_json
from stages.weights.dimensions import dimensions_of
from stages.weights.precision import engine_dtype
from workflows.errors import UsageError
from workflows.trajectory import library_seed

LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the largest ranks that vLLM can be set to
SMALLEST_HEAD: Final = 32  # numbers in an attention head that vLLM's CPU kernels want at least
BLOCK: Final = 32  # tokens of a block of the cache on CPU: what its kernels are made for


def check_arguments(spec: EngineSpec) -> None:
    """Refuse a model, lengths or adapters that vLLM can't serve here.

    Raises:
        UsageError: naming the setting and the remedy.
    """
    info = check_length(spec)
    if not spec.num_gpus and info.head_size < SMALLEST_HEAD:
        raise UsageError(
            f"engine of {spec.base_id!r}: vLLM on CPU needs attention heads of size {SMALLEST_HEAD} or more, "
            f'the model in {spec.checkpoint} has {info.head_size}; use engine "torch"'
        )
    _check_parallel(spec)
    _check_cache(spec, info.dtype)
    for model_id, adapter in spec.adapters.items():
        if adapter.train_embeddings:
            raise UsageError(
                f"models.{model_id}.adapter.train_embeddings: vLLM has no adapters with embeddings of their "
                f'own; set it to false, or use engine = "torch" in [models.{spec.base_id}]'
            )
        if adapter.rank > LORA_RANKS[-1]:
            raise UsageError(
                f"models.{model_id}.adapter.rank = {adapter.rank}, but vLLM takes {LORA_RANKS[-1]} at most"
            )


def _check_parallel(spec: EngineSpec) -> None:
    """Refuse a number of GPUs over which vLLM can't spread the attention heads."""
    sizes, devices = dimensions_of(spec.checkpoint), int(spec.num_gpus)
    if devices > 1 and sizes is not None and sizes.heads % devices:
        fitting = [str(n) for n in range(1, sizes.heads + 1) if not sizes.heads % n and n <= 16]
        raise UsageError(
            f"models.{spec.base_id}.num_gpus = {spec.num_gpus:g}, but vLLM gives each GPU as many of the "
            f"{sizes.heads} attention heads; use {', '.join(fitting[:-1])} or {fitting[-1]}"
        )


def _check_cache(spec: EngineSpec, checkpoint_dtype: str) -> None:
    """Refuse a cache on CPU that does not hold one sequence of `max_model_len`."""
    if spec.num_gpus or "kv_cache_memory_bytes" in spec.options:
        return
    needed = cache_bytes(spec, checkpoint_dtype)
    if spec.kv_cache_gib * 2**30 < needed:
        raise UsageError(
            f"models.{spec.base_id}.kv_cache_gib = {spec.kv_cache_gib:g}, but one sequence of max_model_len "
            f"= {spec.max_model_len} tokens takes {needed / 2**30:.3g} GiB of the cache; raise it, or lower "
            "max_model_len"
        )


def cache_bytes(spec: EngineSpec, checkpoint_dtype: str) -> int:
    """Bytes that keys and values of one sequence of `max_model_len` take, in whole blocks.

    0 for models whose layers keep less than every token's keys and values, such as sliding windows: what
    they take is not known here.
    """
    config = read_json(Path(spec.checkpoint) / "config.json", what="a model folder needs it")
    config = {**config, **(config.get("text_config") or {})}
    full = set(config.get("layer_types") or ()) <= {"full_attention"}
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not (full and layers and heads) or config.get("sliding_window") or config.get("kv_lora_rank"):
        return 0
    dtype = engine_dtype(spec.dtype, spec.num_gpus, checkpoint_dtype)
    size = 4 if (checkpoint_dtype if dtype == "auto" else dtype) == "float32" else 2
    of_head = config.get("head_dim") or config.get("hidden_size", 0) // heads
    of_token = 2 * layers * (config.get("num_key_value_heads") or heads) * of_head * size
    return int(-(-spec.max_model_len // BLOCK) * BLOCK * of_token)


def engine_arguments(spec: EngineSpec, checkpoint_dtype: str) -> dict[str, Any]:
    """The keywords of vLLM's AsyncEngineArgs; `spec.options` wins over ours."""
    dtype = engine_dtype(spec.dtype, spec.num_gpus, checkpoint_dtype)
    arguments: dict[str, Any] = {
        "model": spec.checkpoint,
        "dtype": checkpoint_dtype if dtype == "auto" else dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_batch_size,
        "seed": library_seed(spec.seed),
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "stages.engines.vllm.worker.CadreWorker",
    }
    if spec.num_gpus:
        arguments |= {
            "gpu_memory_utilization": spec.gpu_memory_fraction,
            "enable_sleep_mode": True,
            "tensor_parallel_size": max(1, int(spec.num_gpus)),
        }
    else:
        arguments |= {
            "enforce_eager": True,
            "block_size": BLOCK,
            # A seeded prompt that is prefilled in pieces kills the CPU runner of vLLM 0.32 ("CPU
            # Generator does not use offset"), so prompts go in whole; a few fit one step together.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4 * spec.max_model_len, 4096),
            "kv_cache_memory_bytes": int(spec.kv_cache_gib * 2**30),
        }
    if spec.adapters:
        largest = max(adapter.rank for adapter in spec.adapters.values())
        arguments |= {
            "enable_lora": True,
            # All of them in one batch, none ever unloaded. On CPU vLLM 0.32 puts rows without an adapter
            # through the last slot, so that one stays empty, which is nothing but zeros.
            "max_loras": len(spec.adapters) + (0 if spec.num_gpus else 1),
            "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= largest),
        }
    return arguments | dict(spec.options)
