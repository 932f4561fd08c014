"""Real vLLM on CPU with SmolLM2-135M: one engine, started once, asked through Ray like in a run."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stages.engines.base import EngineSpec, Weights
from stages.engines.client import EngineClient
from stages.engines.kinds import resolve_kind
from stages.engines.start import connect, start_engine, stop_engine, wait_ready
from stages.weights.checkpoints import weights_hash
from stages.weights.precision import engine_dtype
from stages.weights.resolve import resolve_checkpoint
from workflows.engine import Completion, Message, Sampling
from workflows.errors import RunFailed, UsageError
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.roles import Role
from workflows.script import ScriptWorkflow

pytestmark = pytest.mark.slow
pytest.importorskip("vllm", reason="vLLM is not installed: its engine is not tested")

# Each side has kernels of its own; in bf16 0.03 nats mean and 0.18 at most were measured.
MEAN_GAP, LARGEST_GAP = 0.1, 0.6


def chat(question: str) -> list[Message]:
    return [
        {
            "role": "system",
            "content": "You answer questions about the world in one or two full sentences. " * 3,
        },
        {"role": "user", "content": question},
    ]


QUESTIONS = ["What is the capital of France?", "Who wrote Hamlet?", "Why is the sky blue?", "Name a river."]


@pytest.fixture(scope="module")
def checkpoint() -> str:
    return resolve_checkpoint("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def changed(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model with other weights, in the embeddings too: they are the tied output layer."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("weights") / "changed"))
    tensors = load_file(str(folder / "model.safetensors"))
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if "embed" in name or "mlp" in name:
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * 0.2
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


@pytest.fixture(scope="module")
def engine(checkpoint: str, ray_cluster: None) -> Iterator[tuple[Any, EngineClient]]:
    spec = EngineSpec("base", resolve_kind("auto"), checkpoint, max_model_len=1024, kv_cache_gib=0.25)
    handle = start_engine(spec)
    (description,) = wait_ready([handle])
    assert description["kind"] == "vllm"
    yield handle, connect(handle, spec, model_id="m", description=description)
    stop_engine(handle)


def ask(client: EngineClient, *samplings: Sampling) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        prompts = [client.render(chat(question)) for question in QUESTIONS]
        pairs = zip(prompts, samplings, strict=True)
        return list(await asyncio.gather(*[client.generate(p, s) for p, s in pairs]))

    return asyncio.run(all_of_them())


def assert_agrees(client: EngineClient, folder: str, replies: list[Completion], temperature: float) -> None:
    """The sampler's logprobs against a plain forward pass over the same ids, in the engine's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    float32 = engine_dtype("auto", 0, "bfloat16") == "float32"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32 if float32 else torch.bfloat16)
    gaps: list[float] = []
    for question, reply in zip(QUESTIONS, replies, strict=True):
        prompt = client.render(chat(question))
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *reply.token_ids]])).logits[0].float() / temperature
        ours = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(reply.token_ids)[:, None])
        gaps += (ours[:, 0] - torch.tensor(reply.logprobs)).abs().tolist()
    assert sum(gaps) / len(gaps) < MEAN_GAP
    assert max(gaps) < LARGEST_GAP


def test_replies_are_what_was_sampled_and_logprobs_are_of_the_sampling_temperature(
    engine: tuple[Any, EngineClient], checkpoint: str
) -> None:
    _, client = engine
    replies = ask(client, *[Sampling(16, temperature=0.6, seed=2**62 + i) for i in range(4)])
    for reply in replies:
        assert 0 < len(reply.token_ids) == len(reply.logprobs) <= 16
        assert reply.text == client.renderer.decode(reply.token_ids)
        assert (reply.finish_reason == "length") == (len(reply.token_ids) == 16 and reply.token_ids[-1] != 2)
        assert (reply.logprobs_mode, reply.policy_version) == ("processed_logprobs", 0)
        assert reply.first_token_after > 0
    assert_agrees(client, checkpoint, replies, 0.6)
    again = ask(client, *[Sampling(16, temperature=0.6, seed=2**62 + i) for i in range(4)])
    assert all(reply.num_cached_tokens > 0 for reply in again)  # the prefix cache was hit


def test_stops_limits_and_refusals_are_a_requests_own(engine: tuple[Any, EngineClient]) -> None:
    _, client = engine
    stopped, one, filtered, greedy = ask(
        client,
        Sampling(40, temperature=0, stop=(" ",)),
        Sampling(1),
        Sampling(8, top_k=1),
        Sampling(8, temperature=0),
    )
    assert stopped.finish_reason == "stop"
    assert " " in stopped.text
    assert len(stopped.token_ids) == len(stopped.logprobs)
    assert (len(one.token_ids), one.finish_reason) in [(1, "length"), (1, "stop")]
    assert filtered.logprobs == pytest.approx([0.0] * len(filtered.token_ids))  # one token holds all mass
    assert greedy.logprobs_mode == "raw_logprobs"

    async def too_long_beside_a_good_one() -> list[Any]:
        good = client.generate(client.render(chat(QUESTIONS[0])), Sampling(8))
        return list(
            await asyncio.gather(good, client.generate([5] * 1024, Sampling(8)), return_exceptions=True)
        )

    good, refused = asyncio.run(too_long_beside_a_good_one())
    assert isinstance(good, Completion)
    assert isinstance(refused, UsageError)


def test_more_prompt_tokens_than_one_step_takes_are_served(engine: tuple[Any, EngineClient]) -> None:
    """A seeded prompt that vLLM 0.32 prefills in pieces kills its CPU runner."""
    _, client = engine

    async def at_once() -> list[Completion]:
        prompts = [
            [1000 * (i + 1) + k for k in range(900)] for i in range(6)
        ]  # 5,400 tokens; a step has 4,096
        return list(await asyncio.gather(*[client.generate(p, Sampling(2, seed=7)) for p in prompts]))

    assert [len(reply.logprobs) for reply in asyncio.run(at_once())] == [2] * 6


def test_a_conversation_is_read_from_the_prefix_cache(engine: tuple[Any, EngineClient]) -> None:
    """Earlier turns are kept as ids, so the blocks of prompt and reply are not computed anew."""
    role = Role(
        "writer",
        "Tell me about {task}.",
        conversation=True,
        follow_up="Go on: {more}",
        max_response_tokens=48,
    )

    async def talk(team: Any, task: Any) -> None:
        await team.call("writer", {"task": "a river and a mountain in France, and who lives there " * 4})
        for more in ("the town", "the sea"):
            await team.call("writer", {"more": more})

    _, client = engine
    models = ModelMap({"m": Model("m", "base", "x")}, {"writer": "m"})
    player = Player(ScriptWorkflow("talk", [role], talk), {"m": client}, models, {}, PlayLimits(), 0)
    task = {"task_id": "t", "inputs": {}}
    turns = asyncio.run(player.play(task, iteration=0, sample=0)).turns
    assert [turn["status"] in ("ok", "truncated") for turn in turns] == [True] * 3
    block = 32
    for before, after in pairwise(turns):
        kept = before["prompt_token_ids"] + before["response_token_ids"]
        assert after["prompt_token_ids"][: len(kept)] == kept
        # whole blocks of it; the last sampled token is never computed before it is read
        assert after["num_cached_tokens"] >= (len(kept) - 1) // block * block > 0


def test_new_weights_are_the_ones_that_answer(
    engine: tuple[Any, EngineClient], checkpoint: str, changed: str
) -> None:
    import ray

    handle, client = engine
    samplings = [Sampling(16, seed=i) for i in range(4)]
    before = ask(client, *samplings)

    async def reload_while_a_request_runs() -> Completion:
        running = asyncio.create_task(
            client.generate(client.render(chat("Tell a tale.")), Sampling(48, seed=1))
        )
        await asyncio.sleep(0.3)
        with pytest.raises(RunFailed, match="serves 1 requests"):
            await handle.reload.remote(Weights("m", changed, 1, weights_hash(changed)))
        return await running

    assert asyncio.run(reload_while_a_request_runs()).policy_version == 0
    with pytest.raises(RunFailed, match="was announced"):
        ray.get(handle.reload.remote(Weights("m", changed, 1, weights_hash(checkpoint))))
    ray.get(handle.reload.remote(Weights("m", changed, 1, weights_hash(changed))))
    after = ask(client, *samplings)
    assert [reply.policy_version for reply in after] == [1] * 4
    assert all(reply.num_cached_tokens for reply in before)
    # Old weights' prefixes are forgotten: whichever came first had to compute the one that all share.
    assert min(reply.num_cached_tokens for reply in after) == 0
    assert [reply.token_ids for reply in after] != [reply.token_ids for reply in before]
    assert_agrees(client, changed, after, 1.0)
    ray.get(handle.reload.remote(Weights("m", checkpoint, 2, weights_hash(checkpoint))))
    assert_agrees(client, checkpoint, ask(client, *samplings), 1.0)
