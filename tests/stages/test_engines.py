"""Engines before they start, the scripted engine, and a client that plays through Ray."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from stages.engines.base import EngineSpec, Weights, check_request
from stages.engines.client import EngineClient, from_ray, last_words
from stages.engines.kinds import check_spec, memory_estimate, renderer_of, resolve_kind
from stages.engines.scripted import ScriptedServer
from tests.support.torch_engines import CHAT, spec_of
from workflows.engine import Completion, Sampling
from workflows.errors import InfraError, RunFailed, UsageError
from workflows.testing import ScriptedModel


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
    with pytest.raises(UsageError, match=r"option reply of the scripted engine.*can't be called"):
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
