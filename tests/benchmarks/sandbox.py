"""Verdicts per second of the code judge, against bare starts of the same interpreter.

A verdict is one program before one case, in a sandbox of its own: made, run, judged and gone. The
peer is `python3 -I -c pass`, of the interpreter that programs run under. Both go one after the other,
so the ratio says what a verdict costs in starts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.benchmarks.measure import Figure, Options
from workflows.tools.code.cases import CodeTests, read_tests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge

VERDICTS = 40  # of one measurement
TURNS = 8
GOAL = 0.3

KINDS: dict[str, tuple[str, CodeTests]] = {
    "stdin": (
        "a, b = map(int, input().split())\nprint(a * b)",
        read_tests([{"input": "6 7\n", "output": "42\n"}]),
    ),
    "call": (
        "def product(a, b):\n    return a * b",
        read_tests({"inputs": [[6, 7]], "outputs": [42], "fn_name": "product"}),
    ),
    "assert": (
        "def product(a, b):\n    return a * b",
        read_tests(["assert product(6, 7) == 42"], fn_name="product"),
    ),
}


def seconds(once: Callable[[], None], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        once()
    return time.perf_counter() - started


def in_turn(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[float, float]:
    """Rates of both over one measurement, taken in short turns: both see the same noise."""
    spent = [0.0, 0.0]
    for _ in range(TURNS):
        for side, once in enumerate((ours, theirs)):
            spent[side] += seconds(once, VERDICTS // TURNS)
    return VERDICTS / spent[0], VERDICTS / spent[1]


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    judge = CodeJudge()
    say(judge.check())
    python = find_isolation(Sandbox()).python

    def bare(_: int = 0) -> None:
        subprocess.run([python, "-I", "-c", "pass"], check=True)

    figures = []
    for kind, (code, tests) in KINDS.items():

        def verdict(code: str = code, tests: CodeTests = tests) -> None:
            assert judge.grade(code, tests).verdict == "passed"

        in_turn(verdict, bare)  # warm-up
        rates = [in_turn(verdict, bare) for _ in range(options.pairs)]
        with ThreadPoolExecutor(4) as pool:
            started = time.perf_counter()
            list(pool.map(lambda _, verdict=verdict: verdict(), range(VERDICTS)))
            together = VERDICTS / (time.perf_counter() - started)
        figure = Figure(
            f"sandbox, {kind}",
            "verdicts/s",
            tuple(ours for ours, _ in rates),
            tuple(theirs for _, theirs in rates),
            GOAL,
            "least",
            "bare starts",
            (f"asked for by four threads: {together:.1f} verdicts/s",),
        )
        say(f"{kind}: {figure.ratio:.3f}")
        figures.append(figure)
    return figures
