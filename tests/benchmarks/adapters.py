"""What sampling costs where two roles have an adapter each: vLLM with both, against the base alone.

The same prompts go to an engine that serves two adapters on one base, each role to its own, and to an engine
of the base. Both share what they can of prompts; a prefix that both roles have can't be shared by adapters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.run.cluster import start_ray
from stages.engines.base import EngineSpec, Weights
from stages.engines.start import start_engine, stop_engine
from stages.weights.adapters import AdapterSpec
from stages.weights.checkpoints import weights_hash
from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told, torch_dtype
from tests.benchmarks.team_rows import TEAMS, team_rows
from workflows.engine import Sampling

RANK, RESPONSE_TOKENS, MAX_MODEL_LEN = 16, 32, 512
ROLES = ("finder", "answerer")
TEAM = next(team for team in TEAMS if team.name == "reading")


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    import ray

    checkpoint = resolve_checkpoint(options.checkpoint)
    adapters = {role: AdapterSpec(rank=RANK, alpha=2.0 * RANK) for role in ROLES}
    start_ray("local", 0.3)
    try:
        with _engine(checkpoint, {}) as alone, _engine(checkpoint, adapters) as both:
            for number, role in enumerate(ROLES):
                ray.get(both.reload.remote(_moved(checkpoint, options.folder, role, number)))
            mine, others = interleave(
                lambda pair: _sampled(both, checkpoint, pair, by_role=True),
                lambda pair: _sampled(alone, checkpoint, pair, by_role=False),
                options.pairs,
                say,
            )
    finally:
        ray.shutdown()
    return [
        Figure(
            "adapters, sampling",
            "tokens/s",
            column(mine, "tokens_per_second"),
            column(others, "tokens_per_second"),
            goal=0.5,
            at="least",
            against="the base alone",
            notes=(
                f"{told(mine, 'requests', 0)} requests of two roles, an adapter of rank {RANK} on all linear "
                f"layers each; response tokens: ours {told(mine, 'tokens', 0)}, base "
                f"{told(others, 'tokens', 0)}",
                f"share of prompt tokens found in the prefix cache: ours {told(mine, 'cached', 2)}, "
                f"base {told(others, 'cached', 2)}",
                noise_of(mine, others),
            ),
            settings={"rank": RANK, "max_tokens": RESPONSE_TOKENS},
        )
    ]


@contextmanager
def _engine(checkpoint: str, adapters: dict[str, AdapterSpec]) -> Iterator[Any]:
    handle = start_engine(
        EngineSpec(
            "base",
            "vllm",
            checkpoint,
            max_model_len=MAX_MODEL_LEN,
            dtype=torch_dtype(),
            kv_cache_gib=0.5,
            adapters=adapters,
        )
    )
    try:
        yield handle
    finally:
        stop_engine(handle)


def _moved(checkpoint: str, folder: str, role: str, number: int) -> Weights:
    """An adapter that does something: one of version 1, with random numbers in both matrices."""
    import torch
    from transformers import AutoModelForCausalLM

    from stages.weights.lora import Adaptable

    base = Adaptable(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32))
    adapter = base.fresh(AdapterSpec(rank=RANK, alpha=2.0 * RANK), str(number))
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 1e-3 * torch.randn(parameter.shape, generator=generator)
    where = Path(folder) / f"adapter-{role}"
    base.save(adapter, where, checkpoint)
    return Weights(role, str(where), 1, weights_hash(str(where)))


def _sampled(engine: Any, checkpoint: str, pair: int, *, by_role: bool) -> dict[str, float]:
    """All requests of one iteration at once; other tasks in each pair, so that no prompt is known yet."""
    rows = team_rows(TEAM, checkpoint, "base", 1, pair)
    started = time.monotonic()

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(
                engine.generate.remote(
                    row["role"] if by_role else "base",
                    row["prompt_token_ids"],
                    Sampling(RESPONSE_TOKENS, temperature=1.0, seed=number),
                )
                for number, row in enumerate(rows)
            )
        )

    replies = asyncio.run(ask())
    seconds = time.monotonic() - started
    tokens = sum(len(reply.token_ids) for reply in replies)
    prompts = sum(len(row["prompt_token_ids"]) for row in rows)
    return {
        "tokens_per_second": tokens / seconds,
        "requests": float(len(rows)),
        "tokens": float(tokens),
        "cached": sum(reply.num_cached_tokens or 0 for reply in replies) / prompts,
    }
