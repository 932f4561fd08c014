"""The tool that runs a program on tests: what a workflow asks between its coder and its reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from workflows.errors import InfraError
from workflows.hooks import ToolHooks
from workflows.tools.code.cases import read_tests
from workflows.tools.code.extract import extract_code
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits


class CodeVerifier(ToolHooks):
    """A tool: `{"code": str, "tests": any encoding}` to a report as JSON (`report.Report.to_json`).

    A request may also have `problem`, `fn_name` and `time_limit_seconds`. `code` is a program, or a
    reply that holds one (`extract.extract_code`); None and a reply without one give `no_code`. What the
    details of a report say of inputs and expected outputs is for who may see the tests.

    Args:
        limits: a `JudgeLimits`, or its fields that differ from the usual.
        sandbox: as of `judge.CodeJudge`.

    Raises:
        UsageError: a limit or an isolation that can't be.
    """

    keeps_time = True  # limits are in CPU time: neither a queue nor a busy machine makes a timeout

    def __init__(
        self, limits: JudgeLimits | Mapping[str, Any] | None = None, *, sandbox: Sandbox | str = "auto"
    ) -> None:
        if not isinstance(limits, JudgeLimits):
            limits = JudgeLimits.of(limits or {})
        self.judge = CodeJudge(limits, sandbox)

    def check_ready(self) -> None:
        """Try the sandbox.

        Raises:
            UsageError: programs can't run here, and what to do about it.
        """
        self.judge.check()

    async def start(self) -> None:
        """Find the sandbox where the tool arrived."""
        await asyncio.to_thread(self.judge.check)

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Grade one program.

        Raises:
            InfraError: the sandbox failed, not the program.
            DataError: tests in no known encoding.
        """
        tests = read_tests(request.get("tests"), str(request.get("problem") or ""), request.get("fn_name"))
        tests = tests.with_time_limit(request.get("time_limit_seconds"))
        report = await self.judge.agrade(extract_code(str(request.get("code") or "")), tests)
        if report.verdict == "infra_error":
            raise InfraError(f"the code sandbox failed: {report.reason}")
        return report.to_json()
