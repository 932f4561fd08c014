"""Engines that kill their own process in the middle of a rollout: once, and one replica alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stages.engines.base import EngineGone, EngineSpec
from stages.engines.scripted import ScriptedServer
from stages.engines.torch.server import TorchServer
from workflows.engine import Completion, Sampling

SPOKEN = 6  # calls that the one which dies has begun


class _Dying:
    """Mixed into an engine's server. Option `marks` is a folder: the first process that has begun so many
    calls leaves its id there and is killed, with the calls that it computes."""

    marks: Path
    begun = 0

    def _begin(self) -> None:
        self.begun += 1
        if self.begun < SPOKEN:
            return
        try:
            with (self.marks / "killed").open("x") as mark:  # one process alone can make it
                mark.write(str(os.getpid()))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class DyingScript(_Dying, ScriptedServer):
    def __init__(self, spec: EngineSpec) -> None:
        self.marks = Path(spec.options["marks"])
        super().__init__(replace(spec, options={"reply": spec.options["reply"]}))

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        self._begin()
        return await super().generate(model_id, prompt_token_ids, sampling)


class Broken(ScriptedServer):
    """An engine whose process lives on, and which can't answer any more."""

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        raise EngineGone("the engine core died: signal 11")


class DyingTorch(_Dying, TorchServer):
    """Also counts as cached what a prefix cache over time would have: the longest beginning in common with a
    prompt that this replica was asked before. It does not depend on batches, as the torch engine's own does.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.marks = Path(spec.options["marks"])
        self.seen: list[list[int]] = []
        super().__init__(replace(spec, options={}))

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        super().check_spec(replace(spec, options={}))

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        self._begin()
        prompt = list(prompt_token_ids)
        cached = max((_alike(prompt, other) for other in self.seen), default=0)
        self.seen.append(prompt)
        completion = await super().generate(model_id, prompt_token_ids, sampling)
        completion.num_cached_tokens = min(cached, len(prompt) - 1)
        return completion


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two prompts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
