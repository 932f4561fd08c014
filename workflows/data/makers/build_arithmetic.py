"""Builds the task set `arithmetic`: word problems of one, two and three steps with whole answers.

    python -m workflows.data.makers.build_arithmetic            write arithmetic_tasks.jsonl
    python -m workflows.data.makers.build_arithmetic --check    compare it with what would be written

What holds for the result (test_shipped_tasks.py): the kinds of problems are the same in all splits,
a kind with the same numbers is in one split only, whoever the people are, and the expression in `gold`
gives the answer in the stated number of steps. All choices are keyed hashes: the same bytes everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from workflows.data import shipped_file
from workflows.data.makers.arithmetic_wording import KINDS, NAMES, THINGS, Kind
from workflows.data.makers.shipping import jsonl, write_or_check
from workflows.trajectory import seed_for

SEED: Final = 1
SIZES: Final = {"train": 480, "dev": 120, "test": 120}  # a third of each has one step, two, three
SHARES: Final = {"dev": 0.2, "test": 0.2}  # of the numbers that a kind can take

_DRAWS: Final = 5_000  # of one kind, before we say that its numbers are used up


def build() -> list[dict[str, Any]]:
    """The tasks in the order of the file: by split, then by steps, the kinds in turn."""
    return [
        task
        for split, size in SIZES.items()
        for steps in (1, 2, 3)
        for task in _mixed([k for k in KINDS if k.steps == steps], split, size // 3)
    ]


def answer_of(expression: str, numbers: dict[str, int]) -> int:
    return int(eval(expression, {"__builtins__": {}}, numbers))


def _mixed(kinds: list[Kind], split: str, size: int) -> Iterator[dict[str, Any]]:
    streams = [_tasks(kind, split) for kind in kinds]
    for place in range(size):
        yield next(streams[place % len(streams)])


def _tasks(kind: Kind, split: str) -> Iterator[dict[str, Any]]:
    """Problems of one kind for one split, no numbers twice."""
    used: set[tuple[int, ...]] = set()
    for draw in count():
        if draw == _DRAWS:
            raise ValueError(f"the numbers of kind {kind.name!r} do not make enough problems for {split}")
        numbers = {
            letter: low + seed_for(SEED, kind.name, letter, draw) % (high - low + 1)
            for letter, (low, high) in kind.numbers.items()
        }
        key = tuple(numbers.values())
        if key in used or _split_of(kind, key) != split or not eval(kind.when, {"__builtins__": {}}, numbers):
            continue
        used.add(key)
        yield _task(kind, split, numbers, draw)


def _split_of(kind: Kind, key: tuple[int, ...]) -> str:
    place = seed_for(SEED, "split", kind.name, key) % 1000 / 1000
    return "dev" if place < SHARES["dev"] else "test" if place < SHARES["dev"] + SHARES["test"] else "train"


def _task(kind: Kind, split: str, numbers: dict[str, int], draw: int) -> dict[str, Any]:
    first = seed_for(SEED, kind.name, "name", draw) % len(NAMES)
    second = (first + 1 + seed_for(SEED, kind.name, "other", draw) % (len(NAMES) - 1)) % len(NAMES)
    thing = THINGS[seed_for(SEED, kind.name, "thing", draw) % len(THINGS)]
    problem = kind.text.format(name=NAMES[first], other=NAMES[second], thing=thing, **numbers)
    filled = "".join(str(numbers.get(character, character)) for character in kind.expression)
    return {
        "task_id": f"arithmetic-{seed_for(SEED, 'id', problem):016x}",
        "split": split,
        "source": "arithmetic",
        "inputs": {"problem": problem},
        "gold": {
            "answers": [str(answer_of(kind.expression, numbers))],
            "steps": kind.steps,
            "kind": kind.name,
            "expression": filled,
        },
    }


def files() -> dict[Path, bytes]:
    """What the file holds, without writing it."""
    return {Path(shipped_file("arithmetic", "tasks")): jsonl(build())}


def main(arguments: list[str]) -> int:
    return write_or_check(files, arguments, "python -m workflows.data.makers.build_arithmetic")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
