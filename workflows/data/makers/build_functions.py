"""Builds the task set `functions`: small Python functions to write, with public and private tests.

    python -m workflows.data.makers.build_functions            write functions_tasks.jsonl
    python -m workflows.data.makers.build_functions --check    compare it with what would be written

What holds for the result (test_shipped_tasks.py): every reference solution passes its tests; the
solution of no other problem of its family does, nor returning the argument or a constant; no problem is in
two splits. All choices are keyed hashes: the same bytes everywhere.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from workflows.data import shipped_file
from workflows.data.makers.functions_arguments import argument
from workflows.data.makers.functions_wording import FAMILIES, Family
from workflows.data.makers.shipping import jsonl, write_or_check
from workflows.trajectory import seed_for, to_json

SEED: Final = 1
PUBLIC, PRIVATE = 2, 6

_EDGES: Final = 2  # kinds of arguments begin with two edge cases: those are private
_CANDIDATES: Final = 100  # cases to choose from


def build() -> list[dict[str, Any]]:
    """The tasks in the order of the file: family by family in turn, so that any part of it is a mix."""
    tasks = [
        (place, number, task)
        for number, family in enumerate(FAMILIES)
        for place, task in enumerate(_tasks(family))
    ]
    return [task for _, _, task in sorted(tasks, key=lambda entry: entry[:2])]


def filled(text: str, parameters: Mapping[str, Any]) -> str:
    for name, value in parameters.items():
        text = text.replace(f"<{name}>", str(value))
    return text


def function_of(source: str, name: str) -> Any:
    """The function that a reference solution defines. For our own sources only: they run here."""
    space: dict[str, Any] = {}
    exec(source, space)
    return space[name]


def _tasks(family: Family) -> list[dict[str, Any]]:
    sources = [(filled(family.name, p), _source(family, p)) for p in family.variants]
    functions = [function_of(source, name) for name, source in sources]
    splits = _splits(family)
    return [_task(family, i, sources, functions, splits[i]) for i in range(len(family.variants))]


def _splits(family: Family) -> list[str]:
    """One problem of each family for dev and one for test, the others for train."""
    order = sorted(range(len(family.variants)), key=lambda i: seed_for(SEED, "split", family.name, i))
    return ["dev" if i == order[0] else "test" if i == order[1] else "train" for i in range(len(order))]


def _source(family: Family, parameters: Mapping[str, Any]) -> str:
    body = textwrap.indent(filled(family.solution, parameters), "    ")
    return f"def {filled(family.name, parameters)}({family.arguments}):\n{body}\n"


def _task(
    family: Family, index: int, sources: list[tuple[str, str]], functions: list[Any], split: str
) -> dict[str, Any]:
    name, source = sources[index]
    wrong = [_first_argument, *(f for i, f in enumerate(functions) if i != index)]
    cases = _cases(family, name, functions[index], wrong)
    tests = {"kind": "call", "fn_name": name, "checker": "standard", "setup": ""}
    text = filled(family.problem, family.variants[index])
    return {
        "task_id": f"functions-{name}",
        "split": split,
        "source": "functions",
        "inputs": {
            "problem": f"Write a Python function `{name}({family.arguments})` that {text}",
            "fn_name": name,
            "starter_code": "",
            "public_tests": {**tests, "cases": cases[:PUBLIC]},
        },
        "gold": {"private_tests": {**tests, "cases": cases[PUBLIC:]}, "solution": source},
    }


def _first_argument(first: Any, *_: Any) -> Any:
    return first


def _cases(family: Family, name: str, function: Any, others: list[Any]) -> list[dict[str, Any]]:
    """Public cases, then private ones: the edges, one for each of `others` that it fails, and more."""
    drawn = [_case(family, name, function, place) for place in range(_CANDIDATES)]
    edges, usual = drawn[:_EDGES], _distinct(drawn[_EDGES:])
    private = list(edges)
    for other in others:
        telling = [case for case in usual if other(*case["args"]) != case["expected"]]
        if not telling:
            raise ValueError(f"no arguments tell {name} from another function")
        if not any(case in telling for case in private):
            private.append(telling[0])
    rest = [case for case in usual if case not in private]
    return [*rest[:PUBLIC], *private, *rest[PUBLIC : PUBLIC + PRIVATE - len(private)]]


def _case(family: Family, name: str, function: Any, place: int) -> dict[str, Any]:
    args = [argument(kind, (name, i), place) for i, kind in enumerate(family.takes)]
    return {"args": args, "expected": function(*args)}


def _distinct(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cases of their own arguments, those whose results are new before those whose results are not."""
    by_args = {to_json(case["args"]): case for case in cases}
    first_of = {to_json(case["expected"]): key for key, case in reversed(by_args.items())}
    fresh = [by_args[key] for key in by_args if key in first_of.values()]
    return fresh + [case for case in by_args.values() if case not in fresh]


def files() -> dict[Path, bytes]:
    """What the file holds, without writing it."""
    return {Path(shipped_file("functions", "tasks")): jsonl(build())}


def main(arguments: list[str]) -> int:
    return write_or_check(files, arguments, "python -m workflows.data.makers.build_functions")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
