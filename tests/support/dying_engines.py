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

SPOKEN = 4  # calls that the one which dies has begun


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
    """With one thread, however many replicas share the cores: sums over others differ in the last bits."""

    def __init__(self, spec: EngineSpec) -> None:
        self.marks = Path(spec.options["marks"])
        super().__init__(replace(spec, options={}, num_threads=1))

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        super().check_spec(replace(spec, options={}))

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        self._begin()
        return await super().generate(model_id, prompt_token_ids, sampling)
