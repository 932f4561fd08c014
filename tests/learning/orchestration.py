"""Proofs of decisions of a team: `python -m tests.learning orchestration [--only NAME]`.

Each part is a module with `run(folder, seeds)`, which returns results that have `line()`, `reached` and
`as_dict()`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

PARTS: Final = {
    "messages": "tests.learning.messages",  # what a message was worth, and how fast a team learns by it
    "spawn game": "tests.learning.spawn_game",  # when spawning pays, from random weights
    "random traces": "tests.learning.random_traces",  # 10,000 spawn trees, in half an hour
    "stop toy": "tests.learning.stop_toy",  # the algebra of stop credit, on numbers
    "stop game": "tests.learning.stop_game",  # when to stop, from random weights
}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Any]:
    """Run the parts whose name has `only`, and print a line of each result."""
    results: list[Any] = []
    for name, module in PARTS.items():
        if only in name:
            print(f"  {name}", flush=True)
            for result in importlib.import_module(module).run(f"{folder}/{name.replace(' ', '-')}", seeds):
                results.append(result)
                print(f"  {result.line()}", flush=True)
    return results
