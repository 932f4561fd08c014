"""Real vLLM on CPU with two adapters on one small base, in float32 so that gaps are rounding only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.engines.base import EngineSpec, Weights
from stages.engines.start import start_engine, stop_engine
from stages.weights.adapters import AdapterSpec
from stages.weights.checkpoints import weights_hash
from stages.weights.resolve import resolve_checkpoint
from workflows.engine import Completion, Sampling
from workflows.errors import RunFailed

pytestmark = pytest.mark.slow
pytest.importorskip("vllm", reason="vLLM is not installed: its engine is not tested")

SPECS = {
    "a": AdapterSpec(rank=4, alpha=8.0),
    "b": AdapterSpec(rank=3, alpha=6.0, targets=("q_proj", "up_proj")),
}
MODELS = ("a", "b", "base")
PROMPTS = [[3, *range(20, 60), 40 + i] for i in range(3)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights with attention heads of the size that vLLM's CPU kernels want."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model") / "base"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=True,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_checkpoint("tiny")).save_pretrained(folder)
    return str(folder)


def write(base: str, folder: Path, model_id: str, seed: int) -> Weights:
    import torch
    from transformers import AutoModelForCausalLM

    from stages.weights.lora import Adaptable

    ours = Adaptable(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    adapter = ours.fresh(SPECS[model_id], str(seed))
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapter.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    ours.save(adapter, folder, base)
    return Weights(model_id, str(folder), seed, weights_hash(str(folder)))


def expected(base: str, adapter: Weights | None, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter.uri).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    chosen: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(reply)[:, None])[:, 0].tolist()
    return chosen


def test_every_model_answers_with_its_own_adapter_and_a_swap_forgets_prefixes(
    base: str, tmp_path: Path, ray_cluster: None
) -> None:
    import ray

    spec = EngineSpec(
        "base",
        "vllm",
        base,
        max_model_len=128,
        dtype="float32",
        kv_cache_gib=0.1,
        max_batch_size=16,
        adapters=SPECS,
    )
    handle = start_engine(spec)

    async def ask() -> list[Completion]:
        calls = [
            handle.generate.remote(m, p, Sampling(12, seed=i)) for m in MODELS for i, p in enumerate(PROMPTS)
        ]
        return list(await asyncio.gather(*calls))

    def check(adapters: dict[str, Weights]) -> list[Completion]:
        replies = asyncio.run(ask())
        for k, reply in enumerate(replies):
            adapter = adapters.get(MODELS[k // len(PROMPTS)])
            wanted = expected(base, adapter, PROMPTS[k % len(PROMPTS)], reply.token_ids)
            assert reply.logprobs == pytest.approx(wanted, abs=2e-3)
            assert reply.policy_version == (adapter.version if adapter else 0)
        return replies

    try:
        check({})  # version 0 is the base
        first = {m: write(base, tmp_path / f"{m}1", m, 1) for m in SPECS}
        for weights in first.values():
            ray.get(handle.reload.remote(weights))
        before = check(first)
        assert any(r.num_cached_tokens for r in check(first))
        second = first | {"a": write(base, tmp_path / "a2", "a", 2)}
        ray.get(handle.reload.remote(second["a"]))
        after = check(second)
        assert [r.token_ids for r in after[:3]] != [r.token_ids for r in before[:3]]
        with pytest.raises(RunFailed, match="was announced"):
            ray.get(handle.reload.remote(Weights("b", second["a"].uri, 3, "0")))
        with pytest.raises(RunFailed, match="for its adapters only"):
            ray.get(handle.reload.remote(Weights("base", second["a"].uri, 3, second["a"].hash)))
        check(second)
    finally:
        stop_engine(handle)
