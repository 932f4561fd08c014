"""vLLM's adapters on a CPU: each token gets what its own adapter adds, however a batch is mixed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="vLLM is not installed: its adapters are not tested")

RANK, INPUTS, SLICES = 4, 12, (6, 4, 4)


def wrapper(indices: list[int]):
    from stages.engines.vllm import adapters

    made = adapters.TogetherOnCpu(64, 64, "cpu")
    made._token_lora_indices[: len(indices)] = torch.tensor(indices)
    made.indices_len[0] = len(indices)
    made._update_base_metadata = lambda *a, **k: None  # the indices are set already
    made.update_metadata(type("Mapping", (), {"is_prefill": False})(), [7, None, 8], 3, 99)
    return made


def stacks(seed: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    down = tuple(torch.randn(3, 1, RANK, INPUTS, generator=generator) for _ in SLICES)
    return down, tuple(torch.randn(3, 1, size, RANK, generator=generator) for size in SLICES)


def expected(y, x, down, up, indices, scale):
    rows = []
    for row, states, slot in zip(y, x, indices, strict=True):
        added = [b[slot, 0] @ (a[slot, 0] @ states) for a, b in zip(down, up, strict=True)]
        rows.append(row + scale * torch.cat(added) if slot >= 0 else row)
    return torch.stack(rows)


@pytest.mark.parametrize("widest", [512, 8], ids=["masked", "by rows"])
@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(-1, 2), min_size=1, max_size=12), scale=st.sampled_from([1.0, 0.5]))
def test_each_token_gets_what_its_own_adapter_adds(widest, indices, scale) -> None:
    from stages.engines.vllm import adapters

    before, adapters.WIDEST = adapters.WIDEST, widest
    try:
        made, (down, up) = wrapper(indices), stacks(1)
        x, y = torch.randn(len(indices), INPUTS), torch.randn(len(indices), sum(SLICES))
        wanted = expected(y, x, down, up, indices, scale)
        made.add_lora_linear(y, x, down, up, scale, SLICES)
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    finally:
        adapters.WIDEST = before


def test_a_new_adapter_in_an_old_slot_is_used_at_once() -> None:
    indices = [0, 1, 0]
    made, (down, up) = wrapper(indices), stacks(1)
    x = torch.randn(3, INPUTS)
    for seed in (1, 2):
        for old, new in zip((*down, *up), [t for part in stacks(seed) for t in part], strict=True):
            with torch.inference_mode():  # as vLLM writes them
                old[1, 0].copy_(new[1, 0])
        y = torch.zeros(3, sum(SLICES))
        made.add_lora_linear(y, x, down, up, 1.0, SLICES)
        torch.testing.assert_close(y, expected(torch.zeros_like(y), x, down, up, indices, 1.0))
