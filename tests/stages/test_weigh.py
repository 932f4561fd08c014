"""How likely given continuations are: the torch engine against a plain forward pass."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.engines.base import Weights
from stages.engines.torch.server import TorchServer
from tests.support.torch_engines import PROMPTS, serve, spec_of, teacher_forced
from workflows.engine import Sampling, Weighed
from workflows.errors import RunFailed, UsageError

OPTIONS = [[5, 6, 7], [5, 9], [40]]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_of_options_are_those_of_a_plain_forward_pass(tiny: str, temperature: float) -> None:
    async def work(server: TorchServer) -> list[Weighed]:
        asked = [server.weigh("m", prompt, OPTIONS, temperature) for prompt in PROMPTS]
        return list(await asyncio.gather(*asked))

    for prompt, weighed in zip(PROMPTS, serve(spec_of(tiny), work), strict=True):
        for option, logprobs in zip(OPTIONS, weighed.logprobs, strict=True):
            assert logprobs == pytest.approx(teacher_forced(tiny, prompt, option, temperature), abs=1e-5)


def test_options_that_are_the_whole_vocabulary_are_the_full_softmax(tiny: str) -> None:
    """Renormalised over all tokens, options have the probabilities that the model's softmax gives."""
    prompt = PROMPTS[2]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        full = model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1).tolist()
    options = [[token] for token in range(len(full))]
    weighed = serve(spec_of(tiny), lambda server: server.weigh("m", prompt, options, 1.0))
    assert weighed.renormalised == pytest.approx(full, abs=1e-5)
    pair = serve(spec_of(tiny), lambda server: server.weigh("m", prompt, [[3], [8]], 1.0)).renormalised
    either = math.log(math.exp(full[3]) + math.exp(full[8]))
    assert pair == pytest.approx([full[3] - either, full[8] - either], abs=1e-5)


def test_weighing_goes_on_beside_decoding_and_holds_back_new_weights(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        replies = [asyncio.create_task(server.generate("m", p, Sampling(12, seed=1))) for p in PROMPTS]
        weighed = [asyncio.create_task(server.weigh("m", p, OPTIONS, 1.0)) for p in PROMPTS]
        await asyncio.sleep(0)
        with pytest.raises(RunFailed, match="wait for them first"):
            await server.reload(Weights("m", "nowhere", 1, ""))
        both = await asyncio.gather(*replies, *weighed)
        alone = [await server.weigh("m", p, OPTIONS, 1.0) for p in PROMPTS]
        for one, other in zip(both[len(replies) :], alone, strict=True):
            assert one.renormalised == pytest.approx(other.renormalised, abs=1e-5)

    serve(spec_of(tiny), work)


@pytest.mark.parametrize("options", [[[5]], [[5], [5]], [[5], []]])
def test_options_that_are_none_are_refused(tiny: str, options: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="two or more"):
        serve(spec_of(tiny), lambda server: server.weigh("m", PROMPTS[0], options, 1.0))


def test_an_option_that_has_no_room_is_refused(tiny: str) -> None:
    with pytest.raises(UsageError, match="max_model_len"):
        serve(spec_of(tiny, max_model_len=5), lambda server: server.weigh("m", [1, 2, 3, 4], OPTIONS, 1.0))
