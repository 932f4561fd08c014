"""The kinds of word problems of the `arithmetic` task set: text, numbers, and the sum that answers them.

`{name}`, `{other}` and `{thing}` are filled with words, single letters with numbers. An expression uses
the numbers of its text, all of them, and nothing else but the 2 of "twice" and "half".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """`steps` operations solve it. `when`: the numbers that make sense, as a Python condition."""

    name: str
    steps: int
    text: str
    expression: str
    numbers: Mapping[str, tuple[int, int]]  # by letter: smallest and largest
    when: str = "True"


NAMES: Final = (
    "Ada", "Bruno", "Chen", "Dina", "Emil", "Farah", "Goran", "Hana", "Iker", "Jana", "Kofi", "Lena",
    "Marta", "Nils", "Olga", "Pablo", "Rosa", "Sami", "Tara", "Umar", "Vera", "Wen", "Yara", "Zoltan",
)  # fmt: skip
THINGS: Final = (
    "apples", "buttons", "cards", "coins", "eggs", "leaves", "marbles", "pears", "pencils", "shells",
    "stamps", "stickers", "stones", "tickets",
)  # fmt: skip

KINDS: Final = (
    # one step
    Kind(
        "gets more",
        1,
        "{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?",
        "a + b",
        {"a": (2, 20), "b": (2, 20)},
    ),
    Kind(
        "together",
        1,
        "{name} found {a} {thing}. {other} found {b} {thing}. How many {thing} did they find together?",
        "a + b",
        {"a": (2, 30), "b": (2, 30)},
    ),
    Kind(
        "gives away",
        1,
        "{name} had {a} {thing} and gave {b} of them to {other}. How many {thing} are left for {name}?",
        "a - b",
        {"a": (4, 30), "b": (2, 28)},
        "a > b",
    ),
    Kind(
        "difference",
        1,
        "{name} has {a} {thing} and {other} has {b} {thing}. How many more {thing} does {name} have?",
        "a - b",
        {"a": (5, 40), "b": (2, 38)},
        "a > b",
    ),
    Kind(
        "boxes",
        1,
        "There are {a} boxes with {b} {thing} in each. How many {thing} are there in all?",
        "a * b",
        {"a": (2, 9), "b": (2, 12)},
    ),
    Kind(
        "price",
        1,
        "One ticket costs {a} dollars. How many dollars do {b} tickets cost?",
        "a * b",
        {"a": (2, 12), "b": (2, 9)},
    ),
    Kind(
        "shared",
        1,
        "{a} {thing} are shared equally by {b} children. How many {thing} does each child get?",
        "a // b",
        {"a": (6, 72), "b": (2, 9)},
        "a % b == 0 and a > b",
    ),
    Kind(
        "twice",
        1,
        "{name} read {a} pages. {other} read twice as many. How many pages did {other} read?",
        "a * 2",
        {"a": (3, 60)},
    ),
    # two steps
    Kind(
        "gains and loses",
        2,
        "{name} had {a} {thing}, found {b} more and then lost {c}. How many {thing} does {name} have now?",
        "a + b - c",
        {"a": (5, 40), "b": (3, 30), "c": (2, 30)},
        "c < a + b",
    ),
    Kind(
        "packs and loose",
        2,
        "{name} buys {a} packs of {b} {thing} and {c} single ones. How many {thing} does {name} buy?",
        "a * b + c",
        {"a": (2, 9), "b": (3, 12), "c": (2, 15)},
    ),
    Kind(
        "change",
        2,
        "A notebook costs {a} dollars. {name} buys {b} notebooks and pays with {c} dollars. How many dollars "
        "does {name} get back?",
        "c - a * b",
        {"a": (2, 9), "b": (2, 8), "c": (10, 80)},
        "c % 10 == 0 and 0 < c - a * b",
    ),
    Kind(
        "two prices",
        2,
        "A cup of tea costs {a} dollars and a cake costs {b} dollars more than the tea. How many dollars do "
        "the cakes for {c} people cost if everyone has one?",
        "(a + b) * c",
        {"a": (2, 6), "b": (2, 6), "c": (2, 9)},
    ),
    Kind(
        "half left",
        2,
        "{name} had {a} {thing}. {name} gave half of them to {other} and then bought {b} new ones. How many "
        "{thing} does {name} have now?",
        "a // 2 + b",
        {"a": (6, 60), "b": (2, 25)},
        "a % 2 == 0",
    ),
    Kind(
        "twice together",
        2,
        "{name} picked {a} {thing} and {other} picked {b}. A week later they picked twice as many as that in "
        "all. How many {thing} did they pick a week later?",
        "(a + b) * 2",
        {"a": (3, 30), "b": (3, 30)},
    ),
    Kind(
        "shared after some are eaten",
        2,
        "A bowl holds {a} cherries. {b} of them are eaten, and {c} friends share the rest equally. How many "
        "cherries does each friend get?",
        "(a - b) // c",
        {"a": (12, 80), "b": (2, 30), "c": (2, 8)},
        "a - b > c and (a - b) % c == 0",
    ),
    Kind(
        "days of work",
        2,
        "{name} plants {a} trees a day for {b} days. {c} of these trees do not grow. How many of them grow?",
        "a * b - c",
        {"a": (3, 15), "b": (2, 9), "c": (2, 20)},
        "c < a * b",
    ),
    # three steps
    Kind(
        "two sorts of packs",
        3,
        "{name} buys {a} bags of {b} {thing} and {c} bags of {d} {thing}. How many {thing} are in the bags?",
        "a * b + c * d",
        {"a": (2, 9), "b": (3, 12), "c": (2, 9), "d": (3, 12)},
        "b != d",
    ),
    Kind(
        "two purchases and change",
        3,
        "Pens cost {a} dollars each and a ruler costs {b} dollars. {name} buys {c} pens and one ruler and "
        "pays with {d} dollars. How many dollars does {name} get back?",
        "d - (a * c + b)",
        {"a": (2, 7), "b": (2, 9), "c": (2, 8), "d": (20, 90)},
        "d % 10 == 0 and 0 < d - a * c - b",
    ),
    Kind(
        "saving",
        3,
        "{name} saves {a} dollars a week and spends {b} of them. After {c} weeks {name} gets {d} dollars as "
        "a present. How many dollars does {name} have then?",
        "(a - b) * c + d",
        {"a": (6, 20), "b": (2, 15), "c": (3, 12), "d": (5, 40)},
        "a > b",
    ),
    Kind(
        "a bus",
        3,
        "{a} people are on a bus. At the first stop {b} get off and {c} get on. At the second stop {d} get "
        "on. How many people are on the bus now?",
        "a - b + c + d",
        {"a": (10, 50), "b": (2, 25), "c": (2, 20), "d": (2, 20)},
        "b < a",
    ),
    Kind(
        "shelves",
        3,
        "A shop has {a} shelves with {b} jars on each. {c} jars are sold, and the rest go into {d} equal "
        "boxes. How many jars go into each box?",
        "(a * b - c) // d",
        {"a": (3, 9), "b": (4, 12), "c": (2, 20), "d": (2, 8)},
        "a * b - c > d and (a * b - c) % d == 0",
    ),
    Kind(
        "teams",
        3,
        "{a} girls and {b} boys form teams of {c}. Every team gets {d} balls. How many balls are needed?",
        "(a + b) // c * d",
        {"a": (6, 30), "b": (6, 30), "c": (3, 9), "d": (2, 6)},
        "(a + b) % c == 0 and (a + b) // c > 1",
    ),
    Kind(
        "half a walk",
        3,
        "{name} walks {a} kilometres on each of {b} days, and {other} walks half as far in all. How many "
        "kilometres does {other} have to walk on top of that to reach {c} kilometres?",
        "c - a * b // 2",
        {"a": (4, 16), "b": (2, 9), "c": (20, 90)},
        "a * b % 2 == 0 and 0 < c - a * b // 2",
    ),
    Kind(
        "three shares",
        3,
        "{name} has {a} {thing}, {other} has {b} more than {name}, and together they give away {c}. How many "
        "{thing} do the two have left?",
        "a + (a + b) - c",
        {"a": (5, 40), "b": (3, 20), "c": (4, 60)},
        "c < a + a + b",
    ),
)
