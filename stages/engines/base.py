"""The engine protocol on the serving side: what runs inside a Ray actor that owns a model.

`workflows.engine.Engine` is what a player sees; `stages.engines.client.EngineClient` joins the two:
it renders with a local tokenizer and sends ids to the actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from workflows.engine import Completion, Sampling


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as they travel: never a bare local path."""

    model_id: str
    uri: str  # a folder in Hugging Face layout, on any fsspec filesystem
    version: int
    hash: str


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to start one engine. `kind` is vllm, torch, scripted, or an import path `package.module:Class`."""

    base_id: str
    kind: str
    checkpoint: str  # resolved: a local folder (scripted engines need none)
    max_model_len: int = 2048
    dtype: str = "auto"
    max_batch_size: int = 64  # requests decoded together
    kv_cache_gib: float = 1.0
    gpu_memory_fraction: float = 0.4
    num_gpus: float = 0.0
    num_threads: int = 0  # 0: all cores of the machine
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


class EngineServer(Protocol):
    """Lives in a Ray actor. Requests are served in any order, many at a time."""

    def describe(self) -> dict[str, Any]:
        """`max_model_len`, `logprobs_mode`, `policy_version`, `device`, `kind`, `parameters`."""
        ...

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """Sample one completion; `policy_version` is that of the weights when the request arrived."""
        ...

    async def reload(self, weights: Weights) -> None:
        """Swap weights in place, and forget cached prefixes. Refuses while requests run."""
        ...

    async def sleep(self) -> None:
        """Give device memory back where the back end can; a no-op elsewhere."""
        ...

    async def wake(self) -> None: ...

    async def stats(self) -> dict[str, float]:
        """Counters since the start: requests, prompt_tokens, cached_tokens, response_tokens, seconds_busy."""
        ...

    async def close(self) -> None: ...
