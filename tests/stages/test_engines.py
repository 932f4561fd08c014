"""Engines: what they return is what was sampled, whatever batch it was sampled in."""

from __future__ import annotations

import asyncio
import math
import pickle
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.engines.base import EngineSpec, Weights, check_request
from stages.engines.client import EngineClient, from_ray, last_words
from stages.engines.scripted import ScriptedServer
from stages.engines.start import check_spec, memory_estimate, renderer_of, resolve_kind
from stages.engines.torch.decoding import choose, processed_logprobs
from stages.engines.torch.server import TorchServer
from stages.weights.chat import ChatRenderer
from stages.weights.checkpoints import weights_hash
from stages.weights.resolve import resolve_checkpoint
from workflows.engine import Completion, Message, Sampling
from workflows.errors import InfraError, RunFailed, UsageError
from workflows.testing import ScriptedModel

CHAT: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wer? ü"}]


@pytest.fixture(scope="module")
def tiny() -> str:
    return resolve_checkpoint("tiny")


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


def spec_of(folder: str, **changes: Any) -> EngineSpec:
    return EngineSpec("base", "torch", folder, **{"max_model_len": 256, "dtype": "float32", **changes})


def serve(spec: EngineSpec, work: Callable[[TorchServer], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        server = TorchServer(spec)
        try:
            return await asyncio.wait_for(work(server), 60)
        finally:
            await server.close()

    return asyncio.run(run())


def ask_together(
    server: TorchServer, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling]
) -> Awaitable[list[Completion]]:
    pairs = zip(prompts, samplings, strict=True)
    return asyncio.gather(*[server.generate("m", prompt, sampling) for prompt, sampling in pairs])


def teacher_forced(
    folder: str, prompt: Sequence[int], reply: Sequence[int], temperature: float
) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0].float() / temperature
    return (
        logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(reply)[:, None])[:, 0].tolist()
    )


PROMPTS = [[3, 40 + i, *range(60, 60 + 5 * i), 7] for i in range(8)]
SAMPLINGS = [Sampling(max_tokens=4 + 3 * i, temperature=0.5 + 0.2 * i, seed=2**62 + i) for i in range(8)]


# What is returned ------------------------------------------------------------------------------


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
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]])).repeat(5, 1)
    cases = [
        (Sampling(1, top_k=2), [1, 3]),
        (Sampling(1, top_p=0.65), [1, 3]),
        (Sampling(1, top_p=0.75), [1, 2, 3]),
        (Sampling(1, top_p=1e-6), [1]),
        # at T = 0.5 the two likeliest hold 16/30 + 9/30 of the mass
        (Sampling(1, temperature=0.5, top_p=0.8), [1, 3]),
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


# Requests and weights ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        ([], Sampling(4), "prompt of 0 tokens"),
        ([5] * 256, Sampling(4), "prompt of 256 tokens"),
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


# Rendering --------------------------------------------------------------------------------------


def test_a_chat_becomes_the_ids_that_transformers_makes_of_it(tiny: str) -> None:
    ours, theirs = ChatRenderer(tiny), AutoTokenizer.from_pretrained(tiny)
    ids = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.render(CHAT) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_templates_begin_token_is_the_only_one(tiny: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny, add_bos_token=True)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}\n    {{ m | tojson }}\n{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    ids = ChatRenderer(str(tmp_path)).render(CHAT)
    assert ids == tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_chat_that_the_template_refuses_is_a_usage_error(tiny: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"\[system, user\].*no system messages"):
        ChatRenderer(str(tmp_path)).render(CHAT)


def test_options_of_a_template_reach_it_and_are_part_of_what_is_rendered(tiny: str, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "m")
    template = "{% if thinking %}<think>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "m" / "chat_template.jinja").write_text(template)
    plain, thinks = (ChatRenderer(str(tmp_path / "m"), options) for options in ({}, {"thinking": True}))
    assert plain.decode(plain.render(CHAT)) != thinks.decode(thinks.render(CHAT))
    assert thinks.decode(thinks.render(CHAT)).startswith("<think>")
    assert plain.tokenizer_hash != thinks.tokenizer_hash
    assert pickle.loads(pickle.dumps(thinks)).render(CHAT) == thinks.render(CHAT)


def test_a_renderer_pickles_small_and_renders_the_same(tiny: str) -> None:
    renderer = ChatRenderer(tiny)
    ids = renderer.render(CHAT)
    data = pickle.dumps(renderer)
    assert len(data) < 500
    assert pickle.loads(data).render(CHAT) == ids


# Kinds, clients and errors ----------------------------------------------------------------------


def test_kinds_that_do_not_exist_are_refused_with_the_nearest() -> None:
    assert resolve_kind("auto") in ("vllm", "torch")
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        resolve_kind("toch")


def test_a_spec_that_does_not_fit_its_model_is_refused_before_a_start(tiny: str) -> None:
    check_spec(spec_of(tiny))
    with pytest.raises(UsageError, match="knows 2048 positions"):
        check_spec(spec_of(tiny, max_model_len=4096))


def test_an_engine_is_estimated_to_need_its_weights_and_cache(tiny: str) -> None:
    assert (
        memory_estimate(spec_of(tiny, kv_cache_gib=2.0))
        > memory_estimate(spec_of(tiny, kv_cache_gib=1.0))
        > 1
    )


def test_a_scripted_server_renders_and_replies_as_the_scripted_model_does() -> None:
    spec = EngineSpec(
        "base", "scripted", "", options={"reply": "workflows.testing:echo_qa"}, policy_version=2
    )
    server, renderer = ScriptedServer(spec), pickle.loads(pickle.dumps(renderer_of(spec)))
    ids = renderer.render(CHAT)
    assert ids == ScriptedModel(lambda messages, sampling: "").render(CHAT)
    reply = asyncio.run(server.generate("m", ids, Sampling(64, seed=3)))
    assert renderer.decode(reply.token_ids) == reply.text
    assert len(reply.logprobs) == len(reply.token_ids)
    assert reply.policy_version == 2
    asyncio.run(server.reload(Weights("m", "", 5, "")))
    assert asyncio.run(server.generate("m", ids, Sampling(64, seed=3))).policy_version == 5


def test_a_scripted_engine_refuses_options_and_replies_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="did you mean 'reply'"):
        ScriptedServer(EngineSpec("base", "scripted", "", options={"repyl": "a:b"}))
    with pytest.raises(UsageError, match="names no function"):
        ScriptedServer(EngineSpec("base", "scripted", "", options={"reply": "workflows.testing:VOCAB_SIZE"}))


def test_a_failure_in_the_worker_keeps_its_kind_and_its_words() -> None:
    class Wrapped(Exception):
        def __init__(self, cause: Exception) -> None:
            self.cause = cause

    mine = UsageError("too long")
    assert from_ray(Wrapped(mine), "engine") is mine
    assert "KeyError: 'x'" in str(from_ray(Wrapped(KeyError("x")), "engine"))
    died = Exception("The actor died.\n\tactor_id: 1\nThe process was killed by SIGKILL, out of memory")
    assert isinstance(from_ray(died, "engine"), InfraError)
    assert "SIGKILL" in last_words(died)
    assert "kv_cache_gib" in last_words(died)


def test_check_request_passes_what_fits_exactly() -> None:
    check_request([1] * 255, Sampling(1), max_model_len=256, vocab_size=2)


@pytest.mark.slow
def test_a_client_plays_through_ray_and_a_dead_engine_is_an_infra_error(tiny: str, ray_cluster: None) -> None:
    from stages.engines.start import connect, start_engine, stop_engine, wait_ready

    broken = start_engine(EngineSpec("broken", "torch", tiny, dtype="float99"), wait=False)
    specs = [spec_of(tiny), EngineSpec("scripted", "scripted", "")]
    handles = [start_engine(spec, wait=False) for spec in specs]
    described = wait_ready(handles)
    real, scripted = (
        connect(handle, spec, model_id=spec.kind, description=description)
        for handle, spec, description in zip(handles, specs, described, strict=True)
    )
    assert pickle.loads(pickle.dumps(real)).render(CHAT) == real.render(CHAT)

    async def play(client: EngineClient) -> Completion:
        reply = await client.generate(client.render(CHAT), Sampling(12, seed=1))
        assert reply.text == client.renderer.decode(reply.token_ids)
        with pytest.raises((UsageError, InfraError)):
            await client.generate([5] * 10_000, Sampling(4))
        return reply

    assert len(asyncio.run(play(real)).token_ids) == 12
    assert asyncio.run(play(scripted)).finish_reason in ("stop", "length")
    with pytest.raises(RunFailed, match=r"'broken'.*does not start.*float99"):
        wait_ready([broken])
    for handle in handles:
        stop_engine(handle)
    with pytest.raises(InfraError, match="gone"):
        asyncio.run(real.generate([5], Sampling(4)))
