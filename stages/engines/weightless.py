"""What engines without weights share: versions that only count, nothing to sleep, a few counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stages.engines.base import EngineSpec, Weights
from stages.engines.kind import EngineKind
from stages.process.devices import DeviceNeed
from workflows.engine import Completion


class Weightless(EngineKind):
    """The part of an `EngineServer` that says nothing itself: new weights change the version only."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.version = spec.policy_version
        self.versions = dict.fromkeys(spec.adapters, 0)
        self.counts = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "response_tokens", "seconds_busy"), 0.0
        )

    @classmethod
    def device_need(cls, spec: EngineSpec, device_gib: float) -> DeviceNeed:
        return DeviceNeed({}, {}, cls.memory_estimate(spec))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.spec.kind,
            "max_model_len": self.spec.max_model_len,
            "logprobs_mode": "processed_logprobs",
            "policy_version": self.version,
            "device": "cpu",
            "parameters": 0,
        }

    def version_of(self, model_id: str) -> int:
        return self.versions.get(model_id, self.version)

    def count(self, prompt_token_ids: Sequence[int], completion: Completion, started: float) -> None:
        """Count one answer; `started` is when it was asked, on the monotonic clock."""
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += len(prompt_token_ids)
        self.counts["response_tokens"] += len(completion.token_ids)
        self.counts["seconds_busy"] += time.monotonic() - started

    async def reload(self, weights: Weights) -> None:
        if weights.model_id in self.versions:
            self.versions[weights.model_id] = weights.version
        else:
            self.version = weights.version

    async def sleep(self) -> None:
        pass

    async def wake(self) -> None:
        pass

    async def stats(self) -> dict[str, float]:
        return dict(self.counts)

    async def close(self) -> None:
        pass
