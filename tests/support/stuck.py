"""Plug-ins that never come to an end; a file that they leave says that a run waits for them by now."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stages.engines.base import EngineSpec, Weights
from stages.engines.scripted import ScriptedServer
from workflows.loading import load_workflow


def block(mark: str) -> None:
    """Leave the file, with a child process of its own, and never return."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(mark).write_text(str(child.pid))
    while True:
        time.sleep(3600)


class Engine(ScriptedServer):
    """A scripted engine that never ends one of its calls: `stuck` is start, reload, sleep or generate."""

    def __init__(self, spec: EngineSpec) -> None:
        self.stuck, self.mark = spec.options["stuck"], spec.options["mark"]
        self._block("start")
        super().__init__(dataclasses.replace(spec, options={}))

    async def reload(self, weights: Weights) -> None:
        self._block("reload")

    async def sleep(self) -> None:
        self._block("sleep")

    async def generate(self, *arguments: Any) -> Any:
        self._block("generate")
        return await super().generate(*arguments)

    def _block(self, call: str) -> None:
        if self.stuck == call:
            block(self.mark)


class Tool:
    """A tool that never has what it needs."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def start(self) -> None:
        block(self.mark)

    def __call__(self) -> str:
        return ""


def workflow(mark: str, **options: Any) -> Any:
    """The workflow `qa_decompose`, with such a tool beside its own."""
    made = load_workflow("qa_decompose", options)
    object.__setattr__(made, "tools", {**made.tools, "stuck": Tool(mark)})
    return made


def loss(batch: Any, terms: Any = None) -> Any:
    """A loss that never comes to a number; its mark lies where the program runs."""
    import os

    block(os.environ["STUCK_MARK"])
