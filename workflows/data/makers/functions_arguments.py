"""Arguments for the tests of the `functions` task set, from keyed hashes: edge cases first, then others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from workflows.trajectory import seed_for

WORDS: Final = (
    "a", "an", "at", "barn", "bee", "blue", "bread", "cloud", "crane", "do", "elm", "fern", "forest", "go",
    "green", "harbour", "hat", "ink", "is", "island", "jar", "lamp", "lemon", "meadow", "moss", "mountain",
    "on", "orange", "owl", "paper", "pond", "river", "rose", "silver", "stone", "sun", "to", "train", "tree",
    "up", "violet", "water", "we", "window", "winter",
)  # fmt: skip

Draw = Callable[[int, int], int]  # the smallest and the largest number that may come


def argument(kind: str, key: Sequence[object], place: int) -> Any:
    """The argument of this kind for case `place` of the problem that `key` names."""
    edges, make = _KINDS[kind]
    if place < len(edges):
        return edges[place]
    drawn = 0

    def draw(low: int, high: int) -> int:
        nonlocal drawn
        drawn += 1
        return low + seed_for(1, kind, *key, place, drawn) % (high - low + 1)

    return make(draw)


def _numbers(low: int, high: int) -> Callable[[Draw], list[int]]:
    return lambda draw: [draw(low, high) for _ in range(draw(4, 9))]


def _words(draw: Draw) -> list[str]:
    return [WORDS[draw(0, len(WORDS) - 1)] for _ in range(draw(3, 7))]


def _text(draw: Draw) -> str:
    words = _words(draw)
    return " ".join([words[0].capitalize(), *words[1:]])


def _table(draw: Draw) -> list[list[int]]:
    width = draw(3, 4)
    return [[draw(-9, 20) for _ in range(width)] for _ in range(draw(2, 4))]


def _time(draw: Draw) -> str:
    return f"{draw(0, 23):02d}:{draw(0, 59):02d}"


_KINDS: Final[dict[str, tuple[tuple[Any, ...], Callable[[Draw], Any]]]] = {
    "number": ((0, -7), lambda draw: draw(-20, 50)),
    "natural": ((0, 1), lambda draw: draw(2, 300)),
    "natural_small": ((1, 0), lambda draw: draw(1, 9)),
    "positive": ((1, 60), lambda draw: draw(2, 99)),
    "numbers": (([], [4]), _numbers(-6, 18)),
    "naturals": (([], [4]), _numbers(0, 14)),
    "table": (([], [[1, 2, 3]]), _table),
    "text": (("", "Zebra"), _text),
    "words": ((["owl"], []), _words),
    "time": (("23:50", "00:00"), _time),
}
