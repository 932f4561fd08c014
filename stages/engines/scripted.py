"""An engine whose replies a function writes: whole runs in seconds, the same bits every time.

Settings name the function: `options = { reply = "my_package.my_module:function" }`; without one, the
shipped `workflows.testing.echo_qa` answers the built-in workflows. New weights change the version only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stages.engines.base import EngineSpec, check_options
from stages.engines.weightless import Weightless
from stages.weights.chat import Renderer
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import RunFailed, UsageError, did_you_mean
from workflows.plugins import load_function, source_hash
from workflows.testing import VOCAB_SIZE, ScriptedModel

_OPTIONS = ("reply",)


class ScriptedServer(Weightless):
    """`EngineServer` around a `ScriptedModel`.

    Raises:
        UsageError: an unknown option, or `reply` names no function.
    """

    needs_checkpoint = False

    def __init__(self, spec: EngineSpec) -> None:
        if unknown := sorted(set(spec.options) - set(_OPTIONS)):
            raise UsageError(
                f"the scripted engine has no option {unknown[0]!r}{did_you_mean(unknown[0], _OPTIONS)}; "
                f"it has: {', '.join(_OPTIONS)}"
            )
        path = spec.options.get("reply", "workflows.testing:echo_qa")
        reply = load_function(path, "option reply of the scripted engine:")
        super().__init__(spec)
        self.model = ScriptedModel(reply, max_model_len=spec.max_model_len)

    @classmethod
    def renderer(cls, spec: EngineSpec) -> Renderer:
        return ScriptedModel(_renders_only, max_model_len=spec.max_model_len)

    @classmethod
    def memory_estimate(cls, spec: EngineSpec) -> float:
        return 0.15  # GiB of a Ray worker

    @classmethod
    def said_by(cls, options: Mapping[str, Any]) -> str | None:
        """The hash of the file that has the function; what ships is covered by the package's version."""
        return source_hash(options["reply"]) if "reply" in options else None

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        started = time.monotonic()
        version = self.version_of(model_id)
        completion = self.model.complete(prompt_token_ids, sampling, policy_version=version)
        self.count(prompt_token_ids, completion, started)
        return completion

    async def weigh(
        self,
        model_id: str,
        prompt_token_ids: Sequence[int],
        options: Sequence[Sequence[int]],
        temperature: float,
    ) -> Weighed:
        check_options(
            prompt_token_ids,
            options,
            temperature,
            max_model_len=self.spec.max_model_len,
            vocab_size=VOCAB_SIZE,
        )
        version = self.version_of(model_id)
        return self.model.weigh(prompt_token_ids, options, temperature, policy_version=version)


def _renders_only(messages: Sequence[Any], sampling: Sampling) -> str:
    raise RunFailed("a scripted model that only renders was asked for a reply")
