"""The torch engine over time: requests that fail or are given up, new weights, counters."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.engines.base import Weights
from stages.engines.torch.server import TorchServer
from stages.weights.checkpoints import weights_hash
from tests.support.torch_engines import PROMPTS, SAMPLINGS, ask_together, serve, spec_of, teacher_forced
from workflows.engine import Completion, Sampling
from workflows.errors import InfraError, RunFailed, UsageError


@pytest.fixture(scope="module")
def other_tiny(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another checkpoint of the same model."""
    folder = tmp_path_factory.mktemp("weights") / "other"
    model = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        ([], Sampling(4), "the prompt has 0 tokens"),
        ([5] * 256, Sampling(4), "the prompt has 256 tokens"),
        ([5, 260], Sampling(4), "another model's tokenizer"),
        ([5], Sampling(0), "max_tokens"),
        ([5], Sampling(4, temperature=-1.0), "temperature"),
        ([5], Sampling(4, temperature=math.nan), "temperature"),
        ([5], Sampling(4, top_p=0.0), "top_p"),
    ],
)
def test_a_request_that_can_not_be_served_fails_alone(
    tiny: str, prompt: list[int], sampling: Sampling, said: str
) -> None:
    async def work(server: TorchServer) -> tuple[Any, Any]:
        good, bad = server.generate("m", [5, 6], Sampling(5)), server.generate("m", prompt, sampling)
        return tuple(await asyncio.gather(good, bad, return_exceptions=True))  # type: ignore[return-value]

    good, bad = serve(spec_of(tiny), work)
    assert isinstance(good, Completion)
    assert isinstance(bad, UsageError)
    assert said in str(bad)


def test_a_step_that_fails_fails_its_requests_and_the_engine_goes_on(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        model, server.batch.model = server.batch.model, None
        failed = await asyncio.gather(
            *[server.generate("m", p, Sampling(5)) for p in PROMPTS[:3]], return_exceptions=True
        )
        assert all(isinstance(error, InfraError) for error in failed)
        server.batch.model = model
        assert len((await server.generate("m", PROMPTS[0], Sampling(5, temperature=0))).token_ids) > 0

    serve(spec_of(tiny), work)


def test_a_request_that_is_given_up_leaves_the_batch(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        server.batch.end_ids = frozenset()
        given_up = asyncio.create_task(server.generate("m", [5, 6], Sampling(200, seed=1)))
        stays = asyncio.create_task(server.generate("m", [7], Sampling(60, seed=2)))
        await asyncio.sleep(0.02)
        given_up.cancel()
        assert len((await stays).token_ids) == 60
        assert given_up.cancelled()
        await asyncio.sleep(0.05)
        assert server.batch.rows == []
        assert server.answers == {}

    serve(spec_of(tiny), work)


def test_new_weights_are_used_and_a_version_is_that_of_the_weights_that_were_asked(
    tiny: str, other_tiny: str
) -> None:
    weights = Weights("m", f"file://{other_tiny}", 4, weights_hash(other_tiny))

    async def work(server: TorchServer) -> None:
        server.batch.end_ids = frozenset()
        long = asyncio.create_task(server.generate("m", [9, 8], Sampling(150, seed=1)))
        await asyncio.sleep(0.01)
        with pytest.raises(RunFailed, match="1 requests run"):
            await server.reload(weights)
        assert (await long).policy_version == 3
        await server.reload(weights)
        after = await server.generate("m", [9, 8], Sampling(20, seed=1))
        assert after.policy_version == server.describe()["policy_version"] == 4
        assert after.logprobs == pytest.approx(
            teacher_forced(other_tiny, [9, 8], after.token_ids, 1.0), abs=1e-5
        )
        assert after.token_ids != (await long).token_ids[:20]

    serve(spec_of(tiny, policy_version=3), work)


def test_an_engine_outlives_the_checkpoint_that_it_started_from(
    tiny: str, other_tiny: str, tmp_path: Path
) -> None:
    """A run that goes on starts its engines from a checkpoint that it prunes some updates later."""
    start = tmp_path / "start"
    shutil.copytree(tiny, start)

    async def work(server: TorchServer) -> None:
        shutil.rmtree(start)
        for version in (1, 2):
            await server.reload(Weights("m", other_tiny, version, weights_hash(other_tiny)))
        assert (await server.generate("m", [9, 8], Sampling(3, seed=1))).policy_version == 2

    serve(spec_of(str(start)), work)


def test_weights_that_are_not_those_announced_are_refused_and_the_old_ones_stay(
    tiny: str, other_tiny: str, tmp_path: Path
) -> None:
    config = AutoModelForCausalLM.from_pretrained(tiny).config
    config.intermediate_size = 64
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    async def work(server: TorchServer) -> None:
        before = await server.generate("m", [9, 8], Sampling(10, seed=1))
        with pytest.raises(RunFailed, match="was announced"):
            await server.reload(Weights("m", other_tiny, 1, "0" * 32))
        with pytest.raises(RunFailed, match="not of the model"):
            await server.reload(Weights("m", str(tmp_path), 1, weights_hash(str(tmp_path))))
        after = await server.generate("m", [9, 8], Sampling(10, seed=1))
        assert (after.token_ids, after.logprobs, after.policy_version) == (
            before.token_ids,
            before.logprobs,
            0,
        )

    serve(spec_of(tiny), work)


def test_counters_add_up_over_requests(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        replies = await ask_together(server, PROMPTS, SAMPLINGS)
        stats = await server.stats()
        assert stats["requests"] == len(PROMPTS)
        assert stats["prompt_tokens"] == sum(map(len, PROMPTS))
        assert stats["response_tokens"] == sum(len(reply.token_ids) for reply in replies)
        assert all(0 <= reply.started_after <= reply.first_token_after for reply in replies)

    serve(spec_of(tiny), work)
