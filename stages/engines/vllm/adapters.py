"""Adapters on a CPU, computed as vLLM computes them there but in a few matrix products.

vLLM 0.32 gathers the two matrices of an adapter once for each token of a batch, in float32: with a prompt of
a thousand tokens that is gigabytes a layer, and a team of two adapters sampled a fifth of what their base
samples alone. Here all tokens of a batch go through the matrices of all adapters, side by side, and a
mask between the two products keeps each token to its own; with so many or such wide adapters that this
would cost more than it saves, each adapter takes its own tokens. Both compute in the dtype of the states, as
the trainer does.

Legend: n tokens, s adapters of the engine, p slices of the layer's output, r their rank.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

WIDEST: Final = 512  # s · p · r up to which all adapters are computed for every token
Matrices = tuple[Tensor, Tensor]  # (in, s · p · r) and (s · p · r, out)


def install() -> None:
    """Make vLLM's CPU platform use `TogetherOnCpu`; before its model is loaded."""
    from vllm.platforms import current_platform

    where = f"{TogetherOnCpu.__module__}.{TogetherOnCpu.__qualname__}"
    type(current_platform).get_punica_wrapper = classmethod(lambda platform: where)


class TogetherOnCpu(PunicaWrapperCPU):
    """Adds to the output of each linear layer what the adapters of a batch's tokens add."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.slots: tuple[int, ...] = ()  # of all adapters, or of the only one in the batch
        self.rows: dict[int, Tensor] = {}  # by slot: the tokens of its adapter, where there are several
        self.own: Tensor = torch.empty(0)  # (n, s) bool: whether an adapter is that of a token
        self._masks: dict[tuple[int, torch.dtype], Tensor] = {}
        self._matrices: dict[tuple[int, tuple[int, ...]], tuple[int, Matrices]] = {}

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], *arguments: Any, **options: Any
    ) -> None:
        """Take in which adapter each token of the next batch has; -1 is none."""
        super().update_metadata(mapping, lora_index_to_id, *arguments, **options)
        indices = self.token_lora_indices
        present = indices.unique().tolist()
        here = [slot for slot in present if slot >= 0]
        self.rows = {} if len(present) == 1 else {s: (indices == s).nonzero()[:, 0] for s in here}
        loaded = {slot for slot, adapter in enumerate(lora_index_to_id) if adapter is not None}
        self.slots = tuple(sorted(loaded.union(here))) if self.rows else tuple(here)
        self._masks.clear()
        self.own = indices[:, None] == torch.tensor(self.slots, dtype=indices.dtype)

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **options: Any,
    ) -> None:
        """`y += scale · x Aᵀ Bᵀ` in place, for each token with the matrices of its adapter.

        Args:
            y: (n, sum of `output_slices`).
            x: (n, in).
            lora_a_stacked: for each slice, the first matrices of all slots, (slots, 1, r, in).
            lora_b_stacked: for each slice, the second ones, (slots, 1, out, r).
        """
        if not self.slots:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        width = len(lora_a_stacked) * lora_a_stacked[0].shape[2]
        stacks = (lora_a_stacked, lora_b_stacked, output_slices)
        if self.rows and len(self.slots) * width > WIDEST:
            for slot, rows in self.rows.items():
                first, second = self._side_by_side((slot,), *stacks)
                y.index_add_(0, rows, (x.index_select(0, rows) @ first) @ second, alpha=scale)
            return
        first, second = self._side_by_side(self.slots, *stacks)
        narrow = x @ first
        if self.rows:
            narrow.mul_(self._mask(width, x.dtype))
        y.addmm_(narrow, second, alpha=scale)

    def _mask(self, width: int, dtype: torch.dtype) -> Tensor:
        """(n, s · width): 1 where a column belongs to the adapter of the token."""
        if (width, dtype) not in self._masks:
            self._masks[width, dtype] = self.own.to(dtype).repeat_interleave(width, dim=1)
        return self._masks[width, dtype]

    def _side_by_side(
        self,
        slots: tuple[int, ...],
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        output_slices: tuple[int, ...],
    ) -> Matrices:
        """The matrices of these slots as two: kept until an adapter of the layer is written."""
        key = (lora_a_stacked[0].data_ptr(), slots)
        written = sum(stack._version for stack in (*lora_a_stacked, *lora_b_stacked))
        known = self._matrices.get(key)
        if known is None or known[0] != written:
            known = (written, matrices_of(slots, lora_a_stacked, lora_b_stacked, output_slices))
            self._matrices[key] = known
        return known[1]


def matrices_of(
    slots: tuple[int, ...],
    lora_a_stacked: tuple[Tensor, ...],
    lora_b_stacked: tuple[Tensor, ...],
    output_slices: tuple[int, ...],
) -> Matrices:
    """(in, s · p · r) and (s · p · r, out): what a slice is narrowed to writes to that slice alone."""
    first = torch.cat([stack[slot, 0] for slot in slots for stack in lora_a_stacked]).T.contiguous()
    second = first.new_zeros(first.shape[1], sum(output_slices))
    row = 0
    for slot in slots:
        column = 0
        for stack, size in zip(lora_b_stacked, output_slices, strict=True):
            rank = stack.shape[3]
            second[row : row + rank, column : column + size] = stack[slot, 0].T
            row, column = row + rank, column + size
    return first, second
