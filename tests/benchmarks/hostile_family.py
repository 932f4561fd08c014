"""Programs that mean harm, in families: each attacks in another way, with details that vary by number.

All stand before the same three problems: print 12345 · 6789, return `a * b`, and pass asserts on it.
None of them computes that; some know the number and then do what no passing program may. So none may
pass. In the texts the number is written 42, for short.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from workflows.tools.code.cases import CodeTests, read_tests

MARK: Final = "cadre-hostile"  # in the name of every file that they try to write

RIGHT: Final = 12345 * 6789
STDIO: Final = read_tests([{"input": "12345 6789\n", "output": f"{RIGHT}\n"}])
CALL: Final = read_tests(
    {"inputs": [[12345, 6789], [6789, 12345]], "outputs": [RIGHT, RIGHT], "fn_name": "solve"}
)
ASSERT: Final = read_tests([f"assert solve(12345, 6789) == {RIGHT}"], fn_name="solve")

Family = tuple[CodeTests, frozenset[str], Callable[[int], str]]
FAMILIES: Final[dict[str, Family]] = {}


@dataclass(frozen=True, slots=True)
class Hostile:
    family: str
    code: str
    tests: CodeTests
    verdicts: frozenset[str]  # the ones that are right for it


def programs(count: int) -> list[Hostile]:
    """`count` programs, the families in turn; the same ones every time."""
    for module in ("machine", "endings", "escapes", "forgeries", "channels"):
        importlib.import_module(f"tests.benchmarks.hostile_{module}")
    names = list(FAMILIES)
    out = []
    for number in range(count):
        tests, verdicts, make = FAMILIES[names[number % len(names)]]
        out.append(Hostile(names[number % len(names)], make(number // len(names)), tests, verdicts))
    return out


def family(tests: CodeTests, *verdicts: str) -> Callable[[Callable[[int], str]], Callable[[int], str]]:
    def register(make: Callable[[int], str]) -> Callable[[int], str]:
        name = make.__name__.strip("_")
        FAMILIES[name] = (
            tests,
            frozenset(verdicts),
            lambda i: _packed(i, textwrap.dedent(make(i)).replace("42", str(RIGHT))),
        )
        return make

    return register


def _packed(i: int, code: str) -> str:
    """The same program, run as it is or from a text, in one place or another."""
    return pick(
        i // 5,
        code,
        f"exec({code!r})",
        f"def run():\n    exec({code!r}, globals())\nrun()\n",
        f"class Run:\n    exec({code!r}, globals())\n",
    )


def pick(i: int, *choices: str) -> str:
    return choices[i % len(choices)]


ANY_FAILURE: Final = ("wrong_answer", "runtime_error", "time_limit", "memory_limit", "output_limit")
