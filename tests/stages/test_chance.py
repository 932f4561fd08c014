"""The policy is one function: no pass over the trainer's network draws at random, or the model is refused."""

import json
from pathlib import Path

import pytest
import torch

from stages.training.network.packing import pack
from stages.training.network.policy import Policy, load_network
from tests.stages.test_policy import checkpoint
from tests.support.tiny_training import partition
from workflows.errors import UsageError

MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
NOISY = [
    ("phimoe", {**MOE, "router_jitter_noise": 0.1, "input_jitter_noise": 0.1, "attention_dropout": 0.3}),
    ("mixtral", {**MOE, "router_jitter_noise": 0.3}),
    ("opt", {"layerdrop": 0.5, "ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.3}),
    ("bert", {"is_decoder": True, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}),
    ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "resid_pdrop": 0.3}),
    ("gpt_neox", {"hidden_dropout": 0.3, "attention_dropout": 0.3}),
]


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(("kind", "changes"), NOISY, ids=[kind for kind, _ in NOISY])
def test_score_reference_and_update_are_of_one_policy(kind, changes, recomputed, tmp_path) -> None:
    """As transformers has the model in evaluation mode, which is what samples."""
    from transformers import AutoModelForCausalLM

    folder = checkpoint(tmp_path / "m", kind, **changes)
    batch = pack(partition(tmp_path / "p").read(), False)
    loaded = load_network(folder, precision="fp32", packed=False, activation_checkpointing=recomputed)
    policy = Policy(loaded.model)
    with torch.no_grad():
        scored = [policy(batch)[0] for _ in range(4)]
    updated = [policy(batch)[0].detach() for _ in range(4)]
    assert all(torch.equal(each, scored[0]) for each in [*scored, *updated])
    sampler = Policy(AutoModelForCausalLM.from_pretrained(folder).eval())
    torch.testing.assert_close(sampler(batch)[0].detach(), scored[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_activations_are_still_computed_twice(kind, tmp_path) -> None:
    changes = {"layerdrop": 0.5, "ffn_dim": 96, "word_embed_proj_dim": 64} if kind == "opt" else {}
    folder = checkpoint(tmp_path / "m", kind, **changes)
    loaded = load_network(folder, precision="fp32", packed=False, activation_checkpointing=True)
    passes = []
    last = [m for name, m in loaded.model.named_modules() if name.endswith(("q_proj",))][-1]
    last.register_forward_hook(lambda *_: passes.append(1))
    Policy(loaded.model)(pack(partition(tmp_path / "p").read(), False))[0].sum().backward()
    assert len(passes) == 2


def test_chance_that_no_name_gives_away_is_refused(tmp_path, monkeypatch) -> None:
    """Noise that stays on in evaluation mode, and that comes rarely."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    forward = LlamaDecoderLayer.forward

    def skipped(self, hidden_states, *arguments, **options):
        if float(torch.rand([])) < 0.3:
            return hidden_states
        return forward(self, hidden_states, *arguments, **options)

    folder = checkpoint(tmp_path / "m", "llama")
    monkeypatch.setattr(LlamaDecoderLayer, "forward", skipped)
    with pytest.raises(UsageError, match=r"draws at random while it is trained: two passes over one row"):
        load_network(folder, precision="fp32", packed=True)


def test_noise_that_is_part_of_the_function_is_kept(tmp_path) -> None:
    """PhiMoE's router masks experts by the same number that scales its noise."""
    folder = checkpoint(tmp_path / "m", "phimoe", **NOISY[0][1])
    loaded = load_network(folder, precision="fp32", packed=False)
    assert loaded.model.config.router_jitter_noise == 0.1
    assert loaded.model.config.attention_dropout == 0.0
    assert json.loads((Path(folder) / "config.json").read_text())["attention_dropout"] == 0.3
