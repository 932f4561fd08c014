"""Builds the task sets `reading` and `reading_chains`: short texts and a question that they answer.

    python -m workflows.data.makers.build_reading            write both files
    python -m workflows.data.makers.build_reading --check    compare them with what would be written

A task of `reading` has four sentences, one of which answers. A task of `reading_chains` has six: one says in
which container a thing is, another in which room this container stands. A sentence is in one split only
(test_shipped_tasks.py), the answers are spread evenly over the places in the text, and every room of a
text is the answer to another question about the same text: what does not read the question is right in a
quarter of `reading` and a third of `reading_chains` at best. All choices are keyed hashes: the same bytes
everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from workflows.data import shipped_file
from workflows.data.makers.reading_wording import (
    COLOURS,
    CONTAINERS,
    FORMS,
    HOLDS,
    PEOPLE,
    PLACES,
    STANDS,
    THINGS,
)
from workflows.data.makers.shipping import jsonl, write_or_check
from workflows.trajectory import seed_for

SEED: Final = 1
SIZES: Final = {"train": 600, "dev": 300, "test": 300}
KINDS: Final = ("distinct", "one person", "one thing")
"""What the sentences of a task have in common: nothing, their person (the thing tells them apart), or their
thing (the person does)."""

_STATEMENTS, _LINKS = 4, 3
_ATTEMPTS: Final = 1000
Fact = dict[str, str]
_CONTAINERS: Final = tuple(f"{colour} {container}" for container in CONTAINERS for colour in COLOURS)


def build_reading() -> list[dict[str, Any]]:
    """The tasks of `reading` in the order of the file: by split, the kinds in turn."""
    return [_built(_one, split, number) for split, size in SIZES.items() for number in range(size)]


def build_chains() -> list[dict[str, Any]]:
    """The tasks of `reading_chains` in the order of the file: by split."""
    return [_built(_two, split, number) for split, size in SIZES.items() for number in range(size)]


def _built(make: Callable[[str, int, int], dict[str, Any] | None], split: str, number: int) -> dict[str, Any]:
    for attempt in range(_ATTEMPTS):
        if task := make(split, number, attempt):
            return task
    raise ValueError(f"{_ATTEMPTS} draws of task {number} of split {split} had too few sentences of it")


def _one(split: str, number: int, attempt: int) -> dict[str, Any] | None:
    kind = KINDS[number % len(KINDS)]
    form = FORMS[number // len(KINDS) % len(FORMS)]
    key = ("reading", split, number, attempt)
    people = _some(PEOPLE, 1 if kind == "one person" else _STATEMENTS, *key, "people")
    things = _some(THINGS, 1 if kind == "one thing" else _STATEMENTS, *key, "things")
    owned = [
        {"person": people[i % len(people)], "thing": things[i % len(things)]} for i in range(_STATEMENTS)
    ]
    if (facts := _placed(owned, PLACES, split, *key)) is None:
        return None
    asked = number % _STATEMENTS
    statements = [form.statement.format(**fact) for fact in facts]
    gold = {"kind": kind, "hops": 1, "sentences": [statements[asked]]}
    return _task(
        "reading",
        split,
        statements,
        form.question.format(**facts[asked]),
        facts[asked]["place"],
        gold,
    )


def _two(split: str, number: int, attempt: int) -> dict[str, Any] | None:
    key = ("chains", split, number, attempt)
    people, things = _some(PEOPLE, _LINKS, *key, "people"), _some(THINGS, _LINKS, *key, "things")
    owned = [{"person": people[i], "thing": things[i]} for i in range(_LINKS)]
    held = _placed(owned, _CONTAINERS, split, *key, "held") or []
    standing = _placed([{"container": fact["place"]} for fact in held], PLACES, split, *key, "standing")
    if not standing:
        return None
    asked = number % _LINKS
    first = [HOLDS.statement.format(**fact) for fact in held]
    second = [STANDS.format(**fact) for fact in standing]
    return _task(
        "reading-chains",
        split,
        _some([*first, *second], 2 * _LINKS, *key, "order"),
        HOLDS.question.format(**held[asked]),
        standing[asked]["place"],
        {"kind": "chain", "hops": 2, "sentences": [first[asked], second[asked]]},
    )


def _placed(
    facts: Sequence[dict[str, str]], places: Sequence[str], split: str, *key: Any
) -> list[Fact] | None:
    """The facts, each with a place that makes it a sentence of this split; None where places run out."""
    placed: list[Fact] = []
    for number, fact in enumerate(facts):
        taken = {other["place"] for other in placed}
        order = _some(places, len(places), *key, number)
        wholes = [{**fact, "place": place} for place in order if place not in taken]
        of_split = [whole for whole in wholes if _split_of(whole) == split]
        if not of_split:
            return None
        placed.append(of_split[0])
    return placed


def _split_of(fact: Fact) -> str:
    """The split of a sentence: that of what it says, however it is worded."""
    place = seed_for(SEED, "split", *sorted(fact.items())) % 100
    return "dev" if place < 25 else "test" if place < 50 else "train"


def _some(values: Sequence[str], count: int, *key: Any) -> list[str]:
    """So many of the values, each once, in an order that `key` decides."""
    return sorted(values, key=lambda value: seed_for(SEED, *key, value))[:count]


def _task(
    source: str, split: str, statements: list[str], question: str, place: str, gold: dict[str, Any]
) -> dict[str, Any]:
    return {
        "task_id": f"{source}-{seed_for(SEED, 'id', *statements, question):016x}",
        "split": split,
        "source": source,
        "inputs": {"statements": statements, "question": question},
        "gold": {"answers": [f"the {place}", f"in the {place}"]} | gold,
    }


def files() -> dict[Path, bytes]:
    """What the files hold, without writing them."""
    return {
        Path(shipped_file("reading", "tasks")): jsonl(build_reading()),
        Path(shipped_file("reading_chains", "tasks")): jsonl(build_chains()),
    }


def main(arguments: list[str]) -> int:
    return write_or_check(files, arguments, "python -m workflows.data.makers.build_reading")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
