"""Device memory of one rank of a trainer on CUDA, by formulas: nothing of it was measured on a GPU.

Legend: P numbers that are trained, N ranks, b bytes of the compute precision (2 in bf16, 4 in fp32).
"""

from __future__ import annotations

from typing import Final

from stages.process.devices import CONTEXT_GIB, CUDA_PROCESS_GIB, DeviceNeed
from stages.training.spec import TrainerSpec
from stages.weights.adapters import adapter_parameters
from stages.weights.dimensions import Dimensions, dimensions_of

BUCKET: Final = 500_000_000  # numbers that DeepSpeed reduces together (`stages.training.network.deepspeed`)
ALLOCATOR: Final = 1.2  # share of activations that torch's allocator takes: an assumption
_GIB: Final = 2**30


def device_need(
    spec: TrainerSpec, parameters: int, micro_batch_tokens: int, roles: int = 1, *, with_base: bool = True
) -> DeviceNeed:
    """What one rank needs of its device, and of main memory.

    Weights are whole on every rank (b·P): ZeRO stages 0 to 2 do not spread them (arXiv:1910.02054, 5).
    Gradients and optimizer are `state_bytes`, activations `activation_bytes`. A reference is one more copy of
    the compute weights, unless it is the base of an adapter. Main memory: each rank loads the whole model
    there first.

    Args:
        parameters: numbers in the checkpoint, or in the base of an adapter.
        micro_batch_tokens: of one forward pass.
        roles: whose gradients are kept in float32, where they are measured exactly.
        with_base: whether an adapter's base, and its process, are counted here: only once for all adapters.
    """
    compute = 2 if spec.precision == "bf16" else 4
    trained, frozen = parameters, 0
    if spec.adapter is not None:
        trained = adapter_parameters(spec.adapter, spec.checkpoint, f"models.{spec.model_id}.adapter.targets")
        frozen = parameters if with_base else 0
    kept: dict[str, float] = {"CUDA context": CONTEXT_GIB} if with_base else {}
    kept["weights"] = (trained + frozen) * compute / _GIB
    gradients, optimizer = state_bytes(spec, trained)
    kept["gradients"] = gradients / _GIB
    kept["optimizer"] = optimizer / _GIB
    if spec.reference is not None and (spec.adapter is None or spec.reference.checkpoint != "initial"):
        kept["reference"] = parameters * compute / _GIB
    if spec.critic is not None and spec.critic.kind == "model":
        of_critic = sum(state_bytes(spec, parameters))
        kept["critic"] = (parameters * compute + of_critic) / _GIB
    copies = 2 * roles * (spec.measure.gradients == "exact") + 2 * bool(spec.shaping.coherence_damping)
    if copies:
        kept["gradients by role"] = 4 * trained * copies / _GIB
    working = {"activations": activation_bytes(spec, parameters, micro_batch_tokens) / _GIB}
    if spec.trust is not None and spec.trust.judges:  # weights and moments of before, and the candidate
        working["trust region"] = 16 * trained / (spec.ranks if spec.zero_stage else 1) / _GIB
    if spec.zero_stage == 2:
        # a bucket in the compute precision, another while the first is reduced, and its copy in float32
        working["buckets"] = min(trained, BUCKET) * (2 * compute + 4) / _GIB
    host = (CUDA_PROCESS_GIB + parameters * compute / _GIB) if with_base else 0.0
    return DeviceNeed(kept, working, host)


def state_bytes(spec: TrainerSpec, trained: int) -> tuple[float, float]:
    """Bytes of gradients and of the optimizer on one rank.

    Optimizer: AdamW's two moments and master weights, in float32: 12·P (arXiv:1910.02054, section 3.1), over
    N from stage 1 on; plain fp32 has no second copy of the weights: 8·P.

    Gradients, as DeepSpeed 0.19 keeps them with this trainer's configuration (`runtime/engine.py`,
    `bf16_optimizer.py`, `zero/stage_1_and_2.py`): bf16 at stage 1 adds them up in float32, whole on every
    rank: 4·P; at stage 2 of the own part alone: 4·P / N; at stage 0 in bf16 and once more in float32 for the
    step: 6·P. fp32: 4·P, and 4·P / N at stage 2.
    """
    ranks = spec.ranks if spec.zero_stage else 1
    optimizer = 12 * trained / ranks
    if spec.precision == "fp32" and not spec.zero_stage:
        optimizer = 8 * trained
    if spec.zero_stage == 2:
        return 4 * trained / spec.ranks, optimizer
    whole = 6 if spec.precision == "bf16" and not spec.zero_stage else 4
    return whole * trained, optimizer


def activation_bytes(spec: TrainerSpec, parameters: int, micro_batch_tokens: int) -> float:
    """Bytes that one forward pass keeps for its backward pass, and logits with their gradient.

    Counted layer by layer as arXiv:2205.05198, section 4.1 does, for a layer of two RMS norms, rotary
    attention in one fused kernel and a gated feed-forward, without dropout. With h, q, k, f the widths of
    states, queries, keys and feed-forward and a heads, a token takes

        2·(4 + 2b)·h   each norm: its input in float32, its quotient, its product
        b·(2q + 2k)    rotated queries and keys, values, outputs; and 4·a log-sum-exps
        4·b·f          gate, its activation, the other half, their product

    With activation checkpointing the input of each layer, b·h, and one whole layer at a time. Logits: 2·b·V,
    for every token of a micro-batch, because any may be of a response. Where the sizes of the model are not
    known, the constant that was measured on CPU (`stages.training.spec.activation_estimate`) per parameter.
    """
    dimensions = dimensions_of(spec.checkpoint)
    if dimensions is None:
        each = 1100 * 1024 * parameters / 1e8
        return micro_batch_tokens * each / (4 if spec.activation_checkpointing else 1)
    compute = 2 if spec.precision == "bf16" else 4
    layer = layer_bytes(dimensions, compute)
    layers = dimensions.layers * layer
    if spec.activation_checkpointing:
        layers = dimensions.layers * compute * dimensions.width + layer
    return ALLOCATOR * micro_batch_tokens * (layers + 2 * compute * dimensions.vocabulary)


def layer_bytes(of: Dimensions, compute: int) -> int:
    """Bytes that one layer keeps of one token; see `activation_bytes`."""
    queries, keys = of.heads * of.head_size, of.key_heads * of.head_size
    norms = 2 * (4 + 2 * compute) * of.width
    attention = compute * (2 * queries + 2 * keys) + 4 * of.heads
    return norms + attention + 4 * compute * of.feed_forward
