"""Layers that keep less for their backward pass: the same bits forward, equal gradients, fewer bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GemmaConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaForCausalLM

from stages.training.network.lean import save_less

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def pair(kind: Any, config: Any, dtype: torch.dtype) -> tuple[Any, Any, int]:
    torch.manual_seed(0)
    plain = kind(config)
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weight.copy_(torch.randn_like(weight) * (0.2 if "norm" not in name else 1.0))
    plain = plain.to(dtype).eval()
    lean = copy.deepcopy(plain)
    return plain, lean, save_less(lean)


def passes(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Logits, gradients by parameter, and the bytes that the forward pass keeps."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(2 * 24).reshape(2, 24) % 50
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(input_ids=ids, use_cache=False).logits
    weights = torch.linspace(-1, 1, logits.numel()).reshape(logits.shape)
    (logits.float() * weights).sum().backward()
    of_weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    gradients = {name: p.grad.float() for name, p in model.named_parameters()}
    return logits.detach(), gradients, sum(size for at, size in kept.items() if at not in of_weights)


@pytest.mark.parametrize(
    ("kind", "config"), [(LlamaForCausalLM, LlamaConfig(**SMALL)), (Qwen2ForCausalLM, Qwen2Config(**SMALL))]
)
def test_gradients_are_those_of_the_plain_layers(kind, config):
    plain, lean, changed = pair(kind, config, torch.float32)
    assert changed == 2 * 3 + 1  # two norms and a feed-forward layer in each layer, and the last norm
    expected, by_plain, kept = passes(plain)
    found, by_lean, kept_by_lean = passes(lean)
    assert torch.equal(found, expected)
    for name, gradient in by_plain.items():
        assert (by_lean[name] - gradient).norm() < 1e-5 * gradient.norm(), name
    assert kept_by_lean < 0.85 * kept


def test_in_bfloat16_gradients_are_no_further_from_exact_ones_than_plain_layers_are():
    exact, _, _ = pair(LlamaForCausalLM, LlamaConfig(**SMALL), torch.bfloat16)
    plain, lean, changed = pair(LlamaForCausalLM, LlamaConfig(**SMALL), torch.bfloat16)
    assert changed == 7
    _, true, _ = passes(exact.float())
    expected, by_plain, kept = passes(plain)
    found, by_lean, kept_by_lean = passes(lean)
    assert torch.equal(found, expected)

    def error(gradients: dict[str, torch.Tensor]) -> float:
        return float(sum((gradients[name] - true[name]).square().sum() for name in true).sqrt())

    assert error(by_lean) <= 1.1 * error(by_plain)
    assert kept_by_lean < 0.7 * kept


def test_layers_that_compute_something_else_stay_as_they_are():
    """Gemma's norms multiply by one more than their weight, and its feed-forward layers have another gate."""
    gemma = GemmaConfig(**SMALL, head_dim=8)
    plain, lean, changed = pair(GemmaForCausalLM, gemma, torch.float32)
    assert changed == 0
    assert torch.equal(passes(plain)[0], passes(lean)[0])


class TanhMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.tanh(self.gate_proj(x)) * self.up_proj(x))


def test_a_name_alone_changes_nothing():
    assert save_less(TanhMLP()) == 0


def test_frozen_norms_take_no_gradient():
    _, lean, _ = pair(LlamaForCausalLM, LlamaConfig(**SMALL), torch.float32)
    lean.requires_grad_(False)
    states = torch.randn(1, 3, 32, requires_grad=True)
    norm = lean.model.layers[0].input_layernorm
    norm(states).sum().backward()
    assert norm.weight.grad is None
    assert states.grad is not None
