"""An engine whose replies a function writes: whole runs in seconds, the same bits every time.

Settings name the function: `options = { reply = "my_package.my_module:function" }`; without one, the
shipped `workflows.testing.echo_qa` answers the built-in workflows. New weights change the version only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stages.engines.base import EngineSpec, Weights
from stages.engines.rendering import Renderer
from workflows.engine import Completion, Sampling
from workflows.errors import RunFailed, UsageError, did_you_mean
from workflows.loading import load_object
from workflows.testing import ScriptedModel

_OPTIONS = ("reply",)


class ScriptedServer:
    """`EngineServer` around a `ScriptedModel`.

    Raises:
        UsageError: an unknown option, or `reply` names no function.
    """

    def __init__(self, spec: EngineSpec) -> None:
        if unknown := sorted(set(spec.options) - set(_OPTIONS)):
            raise UsageError(
                f"the scripted engine has no option {unknown[0]!r}{did_you_mean(unknown[0], _OPTIONS)}; "
                f"it has: {', '.join(_OPTIONS)}"
            )
        path = spec.options.get("reply", "workflows.testing:echo_qa")
        reply = load_object(path)
        if not callable(reply):
            raise UsageError(f"option reply = {path!r} of the scripted engine names no function")
        self.spec = spec
        self.versions = dict.fromkeys(spec.adapters, 0)
        self.version = spec.policy_version
        self.model = ScriptedModel(reply, max_model_len=spec.max_model_len)
        self.counts = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "response_tokens", "seconds_busy"), 0.0
        )

    @staticmethod
    def renderer(spec: EngineSpec) -> Renderer:
        return ScriptedModel(_renders_only, max_model_len=spec.max_model_len)

    @staticmethod
    def memory_estimate(spec: EngineSpec) -> float:
        return 0.15  # GiB of a Ray worker

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "scripted",
            "max_model_len": self.spec.max_model_len,
            "logprobs_mode": self.model.logprobs_mode,
            "policy_version": self.version,
            "device": "cpu",
            "parameters": 0,
        }

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        started = time.monotonic()
        version = self.versions.get(model_id, self.version)
        completion = self.model.complete(prompt_token_ids, sampling, policy_version=version)
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += len(prompt_token_ids)
        self.counts["response_tokens"] += len(completion.token_ids)
        self.counts["seconds_busy"] += time.monotonic() - started
        return completion

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


def _renders_only(messages: Sequence[Any], sampling: Sampling) -> str:
    raise RunFailed("a scripted model that only renders was asked for a reply")
