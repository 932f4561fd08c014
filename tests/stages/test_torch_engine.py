"""The torch engine: what it returns is what was sampled, whatever batch it was sampled in."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.engines.torch.decoding import choose, processed_logprobs
from stages.engines.torch.server import TorchServer
from tests.support.torch_engines import PROMPTS, SAMPLINGS, ask_together, serve, spec_of, teacher_forced
from workflows.engine import Completion, Sampling


def test_logprobs_are_those_of_a_plain_forward_pass_at_the_sampling_temperature(tiny: str) -> None:
    replies = serve(spec_of(tiny), lambda s: ask_together(s, PROMPTS, SAMPLINGS))
    for prompt, sampling, reply in zip(PROMPTS, SAMPLINGS, replies, strict=True):
        assert len(reply.logprobs) == len(reply.token_ids) > 0
        assert reply.logprobs_mode == "processed_logprobs"
        expected = teacher_forced(tiny, prompt, reply.token_ids, sampling.temperature)
        assert reply.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_request_gets_the_same_tokens_alone_and_in_any_batch(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        alone = [await server.generate("m", p, s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
        together = await ask_together(server, PROMPTS, SAMPLINGS)
        for one, other in zip(alone, together, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert one.finish_reason == other.finish_reason

    serve(spec_of(tiny), work)


def test_requests_join_a_running_batch_and_leave_it_without_a_trace(tiny: str) -> None:
    """Longer and shorter prompts join while others decode, in a batch and a cache that hold three."""

    async def work(server: TorchServer) -> None:
        alone = [await server.generate("m", p, s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
        tasks = []
        for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
            tasks.append(asyncio.create_task(server.generate("m", prompt, sampling)))
            await asyncio.sleep(0.005)
        for one, other in zip(alone, await asyncio.gather(*tasks), strict=True):
            assert one.token_ids == other.token_ids

    serve(spec_of(tiny, max_batch_size=3), work)
    per_token = 2 * 2 * 1 * 32 * 4  # keys and values, layers, heads, size, bytes
    serve(spec_of(tiny, kv_cache_gib=3 * 60 * per_token / 2**30), work)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(tiny: str) -> None:
    async def work(server: TorchServer) -> list[list[int]]:
        seeds = [5, 5, 6]
        replies = await ask_together(server, [PROMPTS[0]] * 3, [Sampling(30, seed=s) for s in seeds])
        return [reply.token_ids for reply in replies]

    one, same, other = serve(spec_of(tiny), work)
    assert one == same != other
    assert serve(spec_of(tiny), work) == [one, same, other]


def test_equal_prompts_that_join_together_share_their_prefill(tiny: str) -> None:
    replies = serve(spec_of(tiny), lambda s: ask_together(s, [PROMPTS[2]] * 3, SAMPLINGS[:3]))
    assert sorted(reply.num_cached_tokens or 0 for reply in replies) == [0, len(PROMPTS[2]), len(PROMPTS[2])]


def test_greedy_takes_the_likeliest_and_says_that_its_logprobs_are_raw(tiny: str) -> None:
    sampling = Sampling(max_tokens=12, temperature=0)
    (reply,) = serve(spec_of(tiny), lambda s: ask_together(s, [PROMPTS[3]], [sampling]))
    assert reply.logprobs_mode == "raw_logprobs"
    assert reply.logprobs == pytest.approx(teacher_forced(tiny, PROMPTS[3], reply.token_ids, 1.0), abs=1e-5)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPTS[3], *reply.token_ids]])).logits[0]
    assert logits[len(PROMPTS[3]) - 1 : -1].argmax(-1).tolist() == reply.token_ids


def test_the_end_token_stays_in_the_ids_and_ends_the_reply(tiny: str) -> None:
    """Also where the pad id is the end id (B1): padding is known by place, never by id."""

    async def work(server: TorchServer) -> list[Completion]:
        samplings = [Sampling(200, temperature=3.0, seed=seed) for seed in range(8)]
        # end ids inside the prompts: they are context, not padding and not an end
        return await ask_together(server, [[1, 1, 40 + i, 1] for i in range(8)], samplings)

    replies = serve(spec_of(tiny), work)
    stopped = [reply for reply in replies if reply.finish_reason == "stop"]
    assert stopped
    for i, reply in enumerate(replies):
        assert 1 not in reply.token_ids[:-1]
        assert (reply.token_ids[-1] == 1) == (reply.finish_reason == "stop")
        expected = teacher_forced(tiny, [1, 1, 40 + i, 1], reply.token_ids, 3.0)
        assert reply.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_cut_reply_is_length_at_the_token_limit_and_at_the_end_of_the_context(tiny: str) -> None:
    async def work(server: TorchServer) -> list[Completion]:
        server.batch.end_ids = frozenset()  # else a reply may end by itself
        return await ask_together(server, [[5] * 10, [5] * 30], [Sampling(7), Sampling(100)])

    limited, full = serve(spec_of(tiny, max_model_len=40), work)
    assert (limited.finish_reason, len(limited.token_ids)) == ("length", 7)
    assert (full.finish_reason, len(full.token_ids)) == ("length", 10)


def test_a_stop_string_ends_the_reply_after_the_token_that_completes_it(tiny: str) -> None:
    async def work(server: TorchServer) -> None:
        free = await server.generate("m", PROMPTS[4], Sampling(40, temperature=0))
        text = server.chat.decode(free.token_ids)
        stop = text[3:5]
        sampling = Sampling(40, temperature=0, stop=("never there", stop))
        reply = await server.generate("m", PROMPTS[4], sampling)
        assert reply.finish_reason == "stop"
        assert reply.token_ids == free.token_ids[: len(reply.token_ids)]
        assert stop in server.chat.decode(reply.token_ids)
        assert stop not in server.chat.decode(reply.token_ids[:-1])

    serve(spec_of(tiny), work)


# The distribution -------------------------------------------------------------------------------


def test_logprobs_are_of_the_distribution_after_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0]])
    assert processed_logprobs(logits, [Sampling(1, temperature=0.5)])[0, 1].item() == pytest.approx(
        -0.1269, abs=1e-4
    )


def test_top_k_and_top_p_filter_after_temperature_and_renormalise() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]])).repeat(9, 1)
    cases = [
        (Sampling(1, top_k=2), [1, 3]),
        (Sampling(1, top_p=0.65), [1, 3]),
        (Sampling(1, top_p=0.75), [1, 2, 3]),
        (Sampling(1, top_p=1e-6), [1]),
        # at T = 0.5 the two likeliest hold 16/30 + 9/30 of the mass
        (Sampling(1, temperature=0.5, top_p=0.8), [1, 3]),
        # min_p: a share of the likeliest token's probability, after the temperature and before the others
        (Sampling(1, min_p=0.5), [1, 2, 3]),
        (Sampling(1, min_p=0.6), [1, 3]),
        (Sampling(1, temperature=0.5, min_p=0.5), [1, 3]),
        (Sampling(1, min_p=0.6, top_p=0.5), [1]),
    ]
    probabilities = processed_logprobs(logits, [s for s, _ in cases]).exp()
    assert probabilities.sum(-1).tolist() == pytest.approx([1.0] * len(cases))
    for row, (_, kept) in zip(probabilities, cases, strict=True):
        assert row.nonzero()[:, 0].tolist() == kept


def test_draws_follow_the_distribution_and_never_take_a_token_without_mass() -> None:
    probabilities = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniform = [(i + 0.5) / 1000 for i in range(1000)] + [math.nextafter(1.0, 0.0)]
    logprobs = probabilities.log().repeat(len(uniform), 1)
    counts = torch.bincount(choose(logprobs, uniform, [False] * len(uniform)), minlength=6)
    assert counts.tolist() == [0, 250, 0, 500, 251, 0]
