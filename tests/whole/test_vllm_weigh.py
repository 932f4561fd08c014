"""Options weighed by real vLLM on CPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stages.engines.client import EngineClient
from tests.whole.test_vllm_engine import QUESTIONS, chat, checkpoint, engine  # noqa: F401
from workflows.engine import Completion, Sampling
from workflows.errors import UsageError

pytestmark = pytest.mark.slow


def test_options_are_weighed_as_they_are_sampled(engine: tuple[Any, EngineClient]) -> None:  # noqa: F811
    """Options of one and of two tokens, against the logprobs of a reply that was sampled so."""
    _, client = engine
    prompt = client.render(chat(QUESTIONS[0]))

    async def work() -> tuple[Completion, Any]:
        said = await client.generate(prompt, Sampling(2, temperature=0.7, seed=3))
        other = [t + 1 for t in said.token_ids]
        options = [said.token_ids[:1], said.token_ids, other]
        return said, await client.weigh(prompt, options, 0.7)

    said, weighed = asyncio.run(work())
    assert [len(one) for one in weighed.logprobs] == [1, 2, 2]
    assert weighed.logprobs[0][0] == pytest.approx(said.logprobs[0], abs=0.02)
    assert weighed.logprobs[1] == pytest.approx(said.logprobs, abs=0.02)
    assert weighed.num_cached_tokens > 0
    with pytest.raises(UsageError, match="two or more"):
        asyncio.run(client.weigh(prompt, [said.token_ids], 0.7))
