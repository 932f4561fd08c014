"""Torch engines of the tiny model, and the forward pass that holds them to what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stages.engines.base import EngineSpec
from stages.engines.torch.server import TorchServer
from workflows.engine import Completion, Message, Sampling

CHAT: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wer? ü"}]


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
