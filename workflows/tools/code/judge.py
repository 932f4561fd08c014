"""The judge: a program and tests in, a report out.

A program runs in a fresh process for each case (`cases` of a report). Its verdict follows from what
happened (`trial.py`), never from a text that it wrote, and not from how busy the machine is.

Cases run side by side in one pool of this process, as many as it has cores, whoever asks: threads,
coroutines, several judges. A judge is plain data, so it can be pickled and shared.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from workflows.errors import UsageError, did_you_mean
from workflows.tools.code.codetests import Case, CodeTests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Isolation, Sandbox
from workflows.tools.code.limits import Limits
from workflows.tools.code.report import CaseReport, Report
from workflows.tools.code.trial import Trial

__all__ = ["CaseReport", "CodeJudge", "JudgeLimits", "Report"]


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """What each case of a program may use, and which tests are graded.

    Args:
        cpu_seconds: CPU time of a case, where neither tests nor statement give a limit. Time spent asleep
            or waiting for a core does not count.
        time_multiplier: what a limit from the tests or the statement is multiplied by.
        memory_mib: address space of each process, and resident memory of all together.
        output_kib: most that a program may write to stdout, to stderr, or as a value.
        processes: processes and threads together.
        idle_seconds: how long all of a program may sleep.
        max_tests: the first so many are graded; 0: all.
        max_case_characters: a test with a longer input or output is skipped.
        max_total_characters: tests beyond this sum are skipped.
        strict_bool: a call that should return 1 may not return True, nor the other way round. Off, since
            Python and the harnesses of the benchmarks have it so.
    """

    cpu_seconds: float = 4.0
    time_multiplier: float = 1.0
    memory_mib: int = 1024
    output_kib: int = 4096
    processes: int = 32
    idle_seconds: float = 10.0
    max_tests: int = 0
    max_case_characters: int = 200_000
    max_total_characters: int = 4_000_000
    strict_bool: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.strict_bool, bool):
            raise UsageError(f"judge limit strict_bool must be true or false, got {self.strict_bool!r}")
        for name in self.__slots__:
            value = True if name == "strict_bool" else getattr(self, name)
            allowed = isinstance(value, int | float) and (value > 0 or (name == "max_tests" and value == 0))
            if not allowed:
                raise UsageError(f"judge limit {name} must be above 0, got {value!r}")

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> JudgeLimits:
        """From settings.

        Raises:
            UsageError: a name or a value that can't be.
        """
        for name in fields:
            if name not in cls.__slots__:
                known = ", ".join(cls.__slots__)
                raise UsageError(
                    f"no judge limit {name!r}{did_you_mean(name, cls.__slots__)}; there are {known}"
                )
        return cls(**fields)

    def of_case(self, tests: CodeTests) -> Limits:
        seconds = self.cpu_seconds
        if tests.time_limit_seconds is not None:
            seconds = tests.time_limit_seconds * self.time_multiplier
        return Limits(
            cpu_seconds=seconds,
            memory=self.memory_mib << 20,
            output=self.output_kib << 10,
            processes=self.processes,
            idle_seconds=self.idle_seconds,
            backstop_seconds=60.0 + 20 * seconds,
        )


@dataclass(frozen=True, slots=True)
class CodeJudge:
    """Grades programs.

    Args:
        sandbox: a `Sandbox`, or the name of an isolation: "auto", "bwrap", "none".

    Raises:
        UsageError: no such isolation.
    """

    limits: JudgeLimits = JudgeLimits()
    sandbox: Sandbox | str = "auto"

    def __post_init__(self) -> None:
        Sandbox.of(self.sandbox)

    def check(self) -> str:
        """Which isolation programs run under, in one line, after trying it. Warns where it is none.

        Raises:
            UsageError: programs can't run here, and what to do about it.
        """
        isolation = self._isolation()
        if isolation.kind == "none":
            _warn(isolation.description)
        return isolation.description

    def grade(self, code: str | None, tests: CodeTests) -> Report:
        """Run the program `code` on all tests, and wait. From any thread.

        Raises:
            UsageError: as `check`.
        """
        order = _Order(self, code, tests)
        try:
            return order.report([future.result() for future in order.futures])
        finally:
            order.cancel()

    async def agrade(self, code: str | None, tests: CodeTests) -> Report:
        """The same for a coroutine; cancelling it ends the programs.

        Raises:
            UsageError: as `check`.
        """
        order = await asyncio.to_thread(_Order, self, code, tests)
        try:
            return order.report(await asyncio.gather(*map(asyncio.wrap_future, order.futures)))
        finally:
            order.cancel()

    def _isolation(self) -> Isolation:
        return find_isolation(Sandbox.of(self.sandbox))


@functools.cache
def _warn(description: str) -> None:
    logging.getLogger("cadre.sandbox").warning("programs of models run in no sandbox: %s", description)


class _Order:
    """One program and its tests, on their way through the pool."""

    def __init__(self, judge: CodeJudge, code: str | None, tests: CodeTests) -> None:
        self._cancelled = threading.Event()
        self._small = _within(judge.limits, tests.cases)
        self.futures: list[Future[CaseReport]] = []
        if any(self._small) and code is not None and code.strip():
            if judge.limits.strict_bool:
                tests = replace(tests, strict_bool=True)
            trial = Trial(judge._isolation(), judge.limits.of_case(tests), code, tests, self._cancelled)
            chosen = [case for case, small in zip(tests.cases, self._small, strict=True) if small]
            self.futures = [_pool().submit(trial.run, case) for case in chosen]

    def report(self, found: list[CaseReport]) -> Report:
        chosen = sum(self._small)
        skipped = len(self._small) - chosen
        if not chosen:
            why = f"all {skipped} tests are beyond the limits" if skipped else "there are no tests"
            return Report("not_graded", skipped=skipped, reason=why)
        if not self.futures:
            return Report("no_code", total=chosen, skipped=skipped, reason="there is no program")
        run = iter(found)
        cases = tuple(next(run) if small else _BEYOND for small in self._small)
        graded = [case for case in cases if case.verdict != "not_graded"]
        skipped = len(cases) - len(graded)
        if not graded:
            return Report(
                "not_graded", cases=cases, skipped=skipped, reason=f"no test can run: {found[0].detail}"
            )
        failed = [case for case in graded if case.verdict != "passed"]
        infra = [case for case in failed if case.verdict == "infra_error"]
        first = next(iter(infra or failed), None)
        return Report(
            verdict=first.verdict if first else "passed",
            passed=len(graded) - len(failed),
            total=len(graded),
            cases=cases,
            skipped=skipped,
            reason=first.detail if first else None,
        )

    def cancel(self) -> None:
        """End what is still under way; nothing is, after a report."""
        self._cancelled.set()
        for future in self.futures:
            future.cancel()


_BEYOND: Final = CaseReport("not_graded", "beyond the limits on tests")


def _within(limits: JudgeLimits, cases: tuple[Case, ...]) -> list[bool]:
    """Which tests are graded: those that are small enough, the first ones while there is room."""
    kept: list[bool] = []
    total = 0
    for case in cases:
        size = case.characters
        room = limits.max_tests == 0 or sum(kept) < limits.max_tests
        small = max(size) <= limits.max_case_characters and total + sum(size) <= limits.max_total_characters
        kept.append(room and small)
        total += sum(size) if kept[-1] else 0
    return kept


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0))), thread_name_prefix="cadre-judge")
