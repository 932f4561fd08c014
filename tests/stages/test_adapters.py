"""Adapters: what a base with adapters computes is what PEFT and merged weights compute, in any batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.engines.base import EngineSpec, Weights
from stages.engines.kinds import check_spec, memory_estimate
from stages.engines.scripted import ScriptedServer
from stages.engines.torch.server import TorchServer
from stages.engines.vllm.arguments import engine_arguments
from stages.weights.adapters import AdapterSpec, adapter_parameters
from stages.weights.checkpoints import weights_hash
from stages.weights.lora import WEIGHTS, Adaptable, Adapter, Share
from stages.weights.merge import merge_adapter
from stages.weights.resolve import resolve_checkpoint
from workflows.engine import Completion, Sampling
from workflows.errors import RunFailed, UsageError

IDS = torch.tensor([[3, 9, 27, 81, 243, 5], [8, 7, 6, 5, 4, 3], [1, 250, 2, 249, 3, 248]])
SPECS = {
    "all": AdapterSpec(rank=4, alpha=8.0),
    "some": AdapterSpec(rank=2, alpha=1.0, targets=("q_proj", "down_proj")),
    "full": AdapterSpec(rank=3, alpha=3.0, train_embeddings=True),
}


@pytest.fixture(scope="module", params=["tiny", "untied", "half"])
def base(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: str, tiny_half: str
) -> str:
    """The tiny model, whose output layer is its embedding, one where it is not, and one that is stored in
    bfloat16; all are computed in float32."""
    if request.param != "untied":
        return {"tiny": tiny, "half": tiny_half}[request.param]
    folder = tmp_path_factory.mktemp("base") / "untied"
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    config = model.config
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return str(folder)


def load(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def trained(base: Adaptable, spec: AdapterSpec, seed: str = "0") -> Adapter:
    """An adapter that has moved away from version 0."""
    adapter = base.fresh(spec, seed)
    generator = torch.Generator().manual_seed(len(seed) + spec.rank)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return adapter


@torch.no_grad()
def logits(base: Adaptable, *shares: Share) -> torch.Tensor:
    base.use(*shares)
    out: torch.Tensor = base.model(IDS).logits
    return out


@pytest.mark.filterwarnings("ignore:Model has `tie_word")
@pytest.mark.parametrize("kind", SPECS)
def test_an_adapter_is_what_peft_makes_of_its_folder_and_merged_weights_are_the_same_model(
    base: str, kind: str, tmp_path: Path
) -> None:
    ours, spec = Adaptable(load(base)), SPECS[kind]
    adapter = trained(ours, spec)
    assert sum(p.numel() for p in adapter.parameters()) == adapter_parameters(spec, base, "x")
    expected = logits(ours, Share(adapter))
    assert not torch.allclose(expected, logits(ours), atol=0.01)
    ours.save(adapter, tmp_path / "adapter", base)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(load(base), str(tmp_path / "adapter")).eval()(IDS).logits
    torch.testing.assert_close(theirs, expected, atol=1e-5, rtol=1e-5)
    merge_adapter(base, str(tmp_path / "adapter"), str(tmp_path / "merged"))
    with torch.no_grad():
        merged = load(str(tmp_path / "merged"))(IDS).logits
    torch.testing.assert_close(merged, expected, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    read = ours.read(spec, str(tmp_path / "adapter"))
    assert torch.equal(logits(ours, Share(read)), expected)


def test_version_0_is_the_base_and_depends_on_its_seed_alone(base: str) -> None:
    ours = Adaptable(load(base))
    alone = logits(ours)
    first = ours.fresh(SPECS["full"], "seed")
    ours.fresh(SPECS["some"], "other")
    again = ours.fresh(SPECS["full"], "seed")
    assert torch.equal(logits(ours, Share(first)), alone)
    assert all(map(torch.equal, first.tensors().values(), again.tensors().values()))
    other = ours.fresh(SPECS["full"], "other").tensors()
    assert not all(map(torch.equal, first.tensors().values(), other.values()))


def test_each_row_of_a_batch_has_its_own_adapter(base: str) -> None:
    ours = Adaptable(load(base))
    one, two = trained(ours, SPECS["full"]), trained(ours, SPECS["all"], "1")
    apart = [logits(ours, Share(one))[2], logits(ours, Share(two))[0], logits(ours)[1]]
    together = logits(ours, Share(one, torch.tensor([2])), Share(two, torch.tensor([0])))
    for row, expected in zip((2, 0, 1), apart, strict=True):
        torch.testing.assert_close(together[row], expected, atol=1e-5, rtol=1e-5)


def test_a_gradient_reaches_the_adapter_in_charge_and_nothing_else(base: str) -> None:
    ours = Adaptable(load(base).requires_grad_(False))
    one, idle = trained(ours, SPECS["full"]), trained(ours, SPECS["full"], "1")
    ours.use(Share(one))
    ours.model(IDS).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in one.parameters())
    assert all(p.grad is None for p in (*idle.parameters(), *ours.model.parameters()))


def test_other_adapters_are_refused_as_a_whole(tmp_path: Path) -> None:
    tiny = resolve_checkpoint("tiny")
    ours = Adaptable(load(tiny))
    ours.save(ours.fresh(SPECS["all"], "x"), tmp_path, tiny)
    for spec in (replace(SPECS["all"], rank=5), SPECS["full"]):
        with pytest.raises(RunFailed, match="not of the kind that was announced"):
            ours.read(spec, str(tmp_path))
    with pytest.raises(RunFailed, match="which this adapter does not have"):
        ours.read(replace(SPECS["all"], targets=("q_proj",)), str(tmp_path))
    ours.save(ours.fresh(SPECS["full"], "x"), tmp_path, tiny)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["base_model.model.lm_head.weight"] += 1
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(RunFailed, match="has two matrices"):
        ours.read(SPECS["full"], str(tmp_path))
    with pytest.raises(UsageError, match=r"no linear layer 'q_prj' \(did you mean 'q_proj'\?\)"):
        ours.fresh(AdapterSpec(targets=("q_prj",)), "x")
    with pytest.raises(UsageError, match=r"models.m.*no linear layer 'lm_head'"):
        adapter_parameters(AdapterSpec(targets=("lm_head",)), tiny, "models.m")


# The torch engine --------------------------------------------------------------------------------

PROMPTS = [[3, 40 + i, *range(60, 60 + 5 * i), 7] for i in range(6)]
SAMPLINGS = [Sampling(max_tokens=4 + 3 * i, temperature=0.5 + 0.2 * i, seed=2**62 + i) for i in range(6)]
MODELS = ["a", "b", "base"]


def serve(spec: EngineSpec, work: Callable[[TorchServer], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        server = TorchServer(spec)
        try:
            return await asyncio.wait_for(work(server), 60)
        finally:
            await server.close()

    return asyncio.run(run())


def all_of(server: TorchServer) -> Awaitable[list[Completion]]:
    """Every model is asked every prompt, all at once."""
    asked = [(m, p, s) for m in MODELS for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    return asyncio.gather(*[server.generate(*request) for request in asked])


def written(folder: Path, tiny: str, kind: str) -> Weights:
    ours = Adaptable(load(tiny))
    ours.save(trained(ours, SPECS[kind], kind), folder, tiny)
    return Weights("", str(folder), 1, weights_hash(str(folder)))


@pytest.mark.filterwarnings("ignore:Model has `tie_word")
def test_models_on_one_base_answer_with_their_own_weights_in_one_batch(tiny: str, tmp_path: Path) -> None:
    new = {
        "a": replace(written(tmp_path / "a", tiny, "full"), model_id="a"),
        "b": replace(written(tmp_path / "b", tiny, "all"), model_id="b", version=4),
    }
    spec = EngineSpec(
        "base",
        "torch",
        tiny,
        max_model_len=256,
        dtype="float32",
        adapters={"a": SPECS["full"], "b": SPECS["all"]},
    )

    async def work(server: TorchServer) -> None:
        first = await all_of(server)
        of_base = first[-len(PROMPTS) :]
        for k, reply in enumerate(first):  # at version 0 all are the base
            assert reply.token_ids == of_base[k % len(PROMPTS)].token_ids
            assert reply.policy_version == 0
        await server.reload(new["a"])
        alone = [await server.generate("a", p, s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
        await server.reload(new["b"])
        together = await all_of(server)
        assert [r.token_ids for r in together[: len(PROMPTS)]] == [r.token_ids for r in alone]
        assert [r.token_ids for r in together[-len(PROMPTS) :]] == [r.token_ids for r in of_base]
        assert [r.policy_version for r in together] == [1] * 6 + [4] * 6 + [0] * 6
        models = {m: PeftModel.from_pretrained(load(tiny), new[m].uri).eval() for m in new}
        models["base"] = load(tiny)
        for k, reply in enumerate(together):
            prompt, sampling = PROMPTS[k % 6], SAMPLINGS[k % 6]
            ids = torch.tensor([[*prompt, *reply.token_ids]])
            with torch.no_grad():
                out = models[MODELS[k // 6]](ids).logits[0, len(prompt) - 1 : -1].float()
            expected = (out / sampling.temperature).log_softmax(-1)
            chosen = expected.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0].tolist()
            assert reply.logprobs == pytest.approx(chosen, abs=2e-5)
        with pytest.raises(RunFailed, match="was announced"):
            await server.reload(replace(new["a"], hash="0"))
        with pytest.raises(RunFailed, match="not of the kind"):
            await server.reload(replace(new["a"], model_id="b"))
        with pytest.raises(RunFailed, match="for its adapters only, which are a, b"):
            await server.reload(replace(new["a"], model_id="base"))
        after = await all_of(server)  # whoever was refused changed nothing
        assert [r.logprobs for r in after] == [r.logprobs for r in together]

    serve(spec, work)


def test_an_engine_with_adapters_is_one_base_and_a_little_more(tiny: str) -> None:
    spec = EngineSpec("base", "torch", tiny)
    two = replace(spec, adapters={"a": SPECS["all"], "b": SPECS["all"]})
    more = 2 * 8 * adapter_parameters(SPECS["all"], tiny, "x") / 2**30
    assert memory_estimate(two) - memory_estimate(spec) == pytest.approx(more)


def test_scripted_engines_count_the_versions_of_each_adapter() -> None:
    async def work() -> list[int]:
        spec = EngineSpec("base", "scripted", "", adapters={"a": AdapterSpec(), "b": AdapterSpec()})
        server = ScriptedServer(spec)
        await server.reload(Weights("b", "nowhere", 7, ""))
        prompt = ScriptedServer.renderer(spec).render([{"role": "user", "content": "Where?"}])
        return [(await server.generate(m, prompt, Sampling(4))).policy_version for m in MODELS]

    assert asyncio.run(work()) == [0, 7, 0]


def test_what_vllm_has_no_adapters_for_is_refused(tiny: str) -> None:
    spec = EngineSpec("base", "vllm", tiny, num_gpus=1)
    arguments = engine_arguments(
        replace(spec, adapters={"a": AdapterSpec(rank=9), "b": AdapterSpec(rank=3)}), "bfloat16"
    )
    assert (arguments["enable_lora"], arguments["max_loras"], arguments["max_lora_rank"]) == (True, 2, 16)
    assert "enable_lora" not in engine_arguments(spec, "bfloat16")
    on_cpu = engine_arguments(replace(spec, num_gpus=0, adapters={"a": AdapterSpec()}), "bfloat16")
    assert on_cpu["max_loras"] == 2  # a slot that stays empty, see there
    if find_spec("vllm") is None:
        pytest.skip("check_spec of a vLLM engine needs vLLM")
    with pytest.raises(UsageError, match=r"models.a.adapter.train_embeddings.*torch"):
        check_spec(replace(spec, adapters={"a": SPECS["full"]}))
    with pytest.raises(UsageError, match=r"models.a.adapter.rank = 1024"):
        check_spec(replace(spec, adapters={"a": AdapterSpec(rank=1024)}))
