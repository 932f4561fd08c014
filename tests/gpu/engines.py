"""Engines on a device: what they answer, and what they hand back asleep."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.gpu.outcome import Unmet

PROMPT = list(range(20, 60))


def sleep_and_wake(kind: str, num_gpus: float = 1.0) -> str:
    """Start an engine, ask it, let it sleep, wake it, and ask it again."""
    from stages.engines.base import EngineSpec
    from stages.weights.resolve import resolve_checkpoint

    checkpoint = resolve_checkpoint("smollm2-135m-instruct")
    return asyncio.run(
        _turns(EngineSpec("team", kind, checkpoint, num_gpus=num_gpus, gpu_memory_fraction=0.3))
    )


async def _turns(spec: Any) -> str:
    from stages.engines.start import EngineActor
    from workflows.engine import Sampling

    greedy = Sampling(max_tokens=16, temperature=0.0)
    before = used_gib()
    engine = EngineActor(spec)
    await engine.ready()
    first = await engine.generate("team", PROMPT, greedy)
    awake = used_gib() - before
    await engine.sleep()
    asleep = used_gib() - before
    await engine.wake()
    again = await engine.generate("team", PROMPT, greedy)
    await engine.close()
    words = f"{awake:.1f} GiB awake, {asleep:.1f} asleep"
    if list(first.token_ids) != list(again.token_ids):
        raise Unmet(f"{words}; it answered {list(first.token_ids)}, and {list(again.token_ids)} once awake")
    # its context and graphs stay
    if spec.num_gpus and not asleep < max(0.2 * awake, 2.0):
        raise Unmet(words)
    return f"{words}, and the same {len(first.token_ids)} tokens"


def answers(num_gpus: float, size: str = "0.5b") -> str:
    """An engine of a model of this size on so many devices answers."""
    import tempfile
    from pathlib import Path

    from stages.engines.base import EngineSpec
    from stages.engines.start import EngineActor
    from stages.weights.resolve import resolve_checkpoint
    from tests.support.headers import SIZES, checkpoint_of
    from workflows.engine import Sampling

    async def ask(folder: str) -> int:
        engine = EngineActor(EngineSpec("team", "vllm", folder, num_gpus=num_gpus))
        await engine.ready()
        completion = await engine.generate("team", PROMPT, Sampling(max_tokens=8, temperature=0.0))
        await engine.close()
        return len(completion.token_ids)

    with tempfile.TemporaryDirectory() as folder:
        tokens = asyncio.run(
            ask(str(checkpoint_of(SIZES[size], Path(folder) / size, Path(resolve_checkpoint("tiny")))))
        )
    if not tokens:
        raise Unmet("no token")
    return f"{tokens} tokens of a model of {size} on {num_gpus:g} GPUs"


def used_gib() -> float:
    """GiB that are taken of the first device; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info(0)
    return float(total - free) / 2**30
