"""A thousand hostile programs before the judge: no wrong pass, no process and no file left behind."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.hostile_family import MARK, Hostile, programs
from tests.benchmarks.measure import Figure, Options
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits

PROGRAMS = 1000
LIMITS = JudgeLimits(cpu_seconds=1.0, idle_seconds=1.0, memory_mib=512, output_kib=512)
_SEARCHED = (
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev",
    "/",
    "/etc",
    "/home",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib/python3.11",
)


@dataclass
class Outcome:
    """What a round of hostile programs came to."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # passes, and verdicts that a family should not get
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def grade_all(hostile: list[Hostile], threads: int = 2) -> Outcome:
    """Grade them, then look for what they left."""
    judge = CodeJudge(LIMITS)
    isolation = find_isolation(Sandbox.of(judge.sandbox))
    mark = f"CADRE_MARK_{uuid.uuid4().hex}"
    isolation.environment[mark] = "1"  # inherited by all that they start
    before = set(_files())
    outcome = Outcome()
    try:
        with ThreadPoolExecutor(threads) as pool:
            reports = pool.map(lambda h: judge.grade(h.code, h.tests), hostile)
            for program, report in zip(hostile, reports, strict=True):
                outcome.verdicts[report.verdict] += 1
                if report.passed or not {case.verdict for case in report.cases} <= program.verdicts:
                    outcome.wrong.append(
                        f"{program.family}: {report.verdict}: {report.reason}\n{program.code}"
                    )
    finally:
        del isolation.environment[mark]
    outcome.processes = sorted(_processes(mark))
    outcome.files = sorted(set(_files()) - before)
    return outcome


def _processes(mark: str) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    yield f"{entry.name} {(entry / 'cmdline').read_bytes()[-80:]!r}"
            except OSError:
                continue


def _files() -> Iterator[str]:
    for folder in _SEARCHED:
        try:
            yield from (os.path.join(folder, n) for n in os.listdir(folder) if MARK in n or "cadre-box-" in n)
        except OSError:
            continue


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    started = time.monotonic()
    outcome = grade_all(programs(PROGRAMS))
    say(", ".join(f"{verdict} {count}" for verdict, count in outcome.verdicts.most_common()))
    for kind in ("wrong", "processes", "files"):
        for line in getattr(outcome, kind):
            say(f"{kind}: {line}")
    say(f"{time.monotonic() - started:.0f} s")
    held = PROGRAMS - len(outcome.wrong) - len(outcome.processes) - len(outcome.files)
    return [Figure("hostile programs", "held", (float(held),), (float(PROGRAMS),), 1.0, "least", "of")]
