"""Attention over one packed row: many sequences side by side, none padded, what begins alike held once.

What a token sees is in `stages.training.network.layout`: its own segment up to itself and all that this
segment continues. That is exactly what it would see in a row by itself, so logprobs and gradients
are those of the plain computation.

On a CPU the forward pass is torch's flash kernel, and so is the backward pass in float32. In bfloat16 that
kernel took 17 to 24 % of an update (SmolLM2-135M, two cores), so there the backward pass is written here
with matrix products, which in float32 took 13 % where the kernel took 8. On a GPU flex attention takes
the whole row in one fused kernel.

Legend: T tokens of the row, H query heads, h key heads, d head size, n tokens of a block, c tokens in
front that it sees, m = c + n.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from stages.training.network.layout import Layout

NAME = "cadre_packed"  # under which transformers finds `packed_attention`


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of a transformers model: (1, H, T, d) queries to (1, T, H, d) outputs.

    Raises:
        UnsupportedAttention: the model asks for more than causal attention, which this would not compute.
    """
    if layout is None:
        raise UnsupportedAttention("its layers do not hand on what a forward pass is called with")
    asked = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    window = options.get("sliding_window")
    if window is not None and window < layout.longest:
        asked.append(f"a sliding window of {window} tokens, with rows of {layout.longest}")
    if dropout:
        asked.append("dropout")
    if asked:
        raise UnsupportedAttention(f"its attention has {', '.join(asked)}")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if query.device.type == "cpu":
        out: Tensor = _CpuAttention.apply(query, key, value, scale, layout)
    else:
        out = flex(query, key, value, scale, layout, compiled=True)
    return out.transpose(1, 2), None


class UnsupportedAttention(ValueError):
    """This model's attention can't be computed over packed rows."""


def flex(
    query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, *, compiled: bool
) -> Tensor:
    """The whole row in one kernel of torch's flex attention: for a GPU, where it has to be compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    attend = _compiled(flex_attention) if compiled else flex_attention
    mask = _flex_mask(layout, query.device)
    out: Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return out


@functools.cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=True)


@functools.lru_cache(maxsize=2)  # one layout serves all layers of a forward pass and its backward
def _flex_mask(layout: Layout, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    ends = layout.ends.to(device)  # [T]

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[k])

    total = len(ends)
    return create_block_mask(sees, None, None, total, total, device=device)


Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # queries, keys, values, outputs, log-sum-exps
Gradients = tuple[Tensor, Tensor, Tensor]  # of queries, keys and values


class _CpuAttention(torch.autograd.Function):
    """Flash forward; backward from the saved log-sum-exp, by what is faster in the states' dtype."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout) -> Tensor:
        out = torch.empty_like(query)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        for block in layout.blocks:
            here = slice(block.start, block.stop)  # the n tokens of the block
            mask = None if block.mask is None else block.mask.to(query.dtype)
            out[:, :, here], sums[:, :, here] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, here],  # [1, H, n, d]
                block.keys(key),  # [1, h, m, d]
                block.keys(value),
                0.0,
                mask is None,
                attn_mask=mask,
                scale=scale,
            )
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.scale, ctx.layout = scale, layout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: with activation checkpointing a second time is an error
        backward = kernel_backward if saved[0].dtype == torch.float32 else product_backward
        return *backward(saved, gradients[0], ctx.scale, ctx.layout), None, None


def kernel_backward(saved: Saved, grad: Tensor, scale: float, layout: Layout) -> Gradients:
    """Gradients of queries, keys and values by torch's kernel, which wants a key head for each query head."""
    query, key, value, out, sums = saved
    groups = query.shape[1] // key.shape[1]
    d_query = torch.empty_like(query)
    d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
    for block in layout.blocks:
        here = slice(block.start, block.stop)
        # [1, H, m, d]: each key head once for every query head of its group
        keys, values = (block.keys(states).repeat_interleave(groups, 1) for states in (key, value))
        d_query[:, :, here], *shared = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad[:, :, here],
            query[:, :, here],
            keys,
            values,
            out[:, :, here],
            sums[:, :, here],
            0.0,
            block.mask is None,
            attn_mask=block.mask,
            scale=scale,
        )
        # back to h key heads: the gradients of a group's query heads are added up
        for total, part in zip((d_key, d_value), shared, strict=True):
            block.add_keys(total, part.unflatten(1, (-1, groups)).sum(2))
    return d_query, d_key, d_value


def product_backward(saved: Saved, grad: Tensor, scale: float, layout: Layout) -> Gradients:
    """Gradients as of `kernel_backward`, by matrix products: FlashAttention (arXiv:2205.14135), B.2."""
    query, key, value, out, sums, grad = (t[0] for t in (*saved, grad))  # [H or h, T, d], sums [H, T]
    groups = query.shape[0] // key.shape[0]
    query = query * scale
    # P = exp(q·k - sums) and P∘(g·v - delta): what is subtracted goes into the matrix products as two
    # more columns, in two parts of the states' dtype, so that it costs no pass over (n, m) and what is
    # rounded is the small difference
    delta = (grad.float() * out.float()).sum(-1)  # [H, T]
    long_query, long_grad = _extended(query, sums), _extended(grad, delta)
    long_key, long_value = (torch.cat([t, t.new_full((*t.shape[:-1], 2), -1.0)], -1) for t in (key, value))

    def folded(states: Tensor, here: slice) -> Tensor:
        """(H, n, …) as (h, H/h·n, …): the query heads of one key head as one long query."""
        return states[:, here].unflatten(0, (-1, groups)).flatten(1, 2)

    d_query = torch.empty_like(query)
    d_key, d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (key, value))
    for block in (step for whole in layout.blocks for step in whole.steps()):
        here, length = slice(block.start, block.stop), block.stop - block.start
        # 1. probabilities, [h, H/h·n, m]; masked after the exponential, which is ten times slower at -inf
        p = torch.bmm(folded(long_query, here), block.keys(long_key).transpose(1, 2)).exp_()
        among_themselves = p.unflatten(1, (groups, length))[..., block.seen :]
        if block.hidden is None:
            among_themselves.tril_()
        else:
            among_themselves.masked_fill_(block.hidden, 0)
        # 2. values: what each query took of them
        block.add_keys(d_value, torch.bmm(p.transpose(1, 2), folded(grad, here)))
        # 3. scores, [h, H/h·n, m], and from them queries and keys
        ds = torch.bmm(folded(long_grad, here), block.keys(long_value).transpose(1, 2)).mul_(p)
        d_query[:, here] = torch.bmm(ds, block.keys(key)).unflatten(1, (groups, length)).flatten(0, 1)
        block.add_keys(d_key, torch.bmm(ds.transpose(1, 2), folded(query, here)))
    d_query *= scale
    return d_query[None], d_key.to(key.dtype)[None], d_value.to(value.dtype)[None]


def _extended(states: Tensor, subtracted: Tensor) -> Tensor:
    """(…, d) with float32 numbers (…) as two more entries, a rounded one and what that leaves out."""
    rounded = subtracted.to(states.dtype)
    rest = (subtracted - rounded.float()).to(states.dtype)
    return torch.cat([states, rounded[..., None], rest[..., None]], -1)


def register(seen: list[int | None] | None = None) -> None:
    """Tell transformers about `packed_attention`; each call notes its sliding window in `seen`, if given."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def noting(*arguments: Any, **options: Any) -> tuple[Tensor, None]:
        if seen is not None:
            seen.append(options.get("sliding_window"))
        return packed_attention(*arguments, **options)

    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention if seen is None else noting)
