"""`chain`: a message is handed on from unit to unit, and each must turn it by a fact that it alone knows.

    start, fact 0 → unit 0 → word → unit 1 (its own fact) → word → … → unit n-1

The first word is right where it is the colour as many places after the start as fact 0 says, the next as many
after that as fact 1 says, and so on. A unit sees its predecessor's word, right or wrong, and its own fact,
nothing else. All units earn the same: the share of words that are right (`right`). So a unit answers for
what later ones make of its word, and what a teammate learns changes the words that come in and what those
that go out are worth. Marks on the way make teams of eight learnable from random weights: the last word alone
would be right by chance, whatever any unit said.

With `rounds = 2` the message goes around twice, and each unit speaks twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from rewards.base import PlayedEpisode
from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.roles import Role
from workflows.state import State
from workflows.steps import Source
from workflows.trajectory import seed_for

COLOURS: Final = ("red", "green", "blue", "yellow")
FACTS: Final = ("ba", "do")  # turn by no place, by one place
LEAST_TASKS, MOST_TASKS = 160, 1024
PROMPT: Final = "hear {message} {fact} name"


def build(units: int = 3, rounds: int = 1) -> Workflow:
    """The game for the words of `tiny-words`, one role and one step for each unit and round."""
    count = units * rounds
    said: list[Source] = ["task.start", *(_said_in(f"say{place}") for place in range(count - 1))]
    return Workflow(
        "chain",
        roles=[
            Role(f"unit{unit}", prompt=PROMPT, max_response_tokens=1, fixed_length=True)
            for unit in range(units)
        ],
        steps=[
            LlmStep(f"say{p}", f"unit{p % units}", {"message": said[p], "fact": f"task.fact{p % units}"})
            for p in range(count)
        ],
        edges=[Edge(f"say{place}", f"say{place + 1}") for place in range(count - 1)],
        answer_step=f"say{count - 1}",
    )


def _said_in(step: str) -> Any:
    return lambda state: _word(state, step)


def _word(state: State, step: str) -> str:
    return state[step].text


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """Tasks for `path` units ("5"): a fourth for the split dev, the others to train on.

    Where there are more than 1,024 different ones, as many are taken, by their hashes. Where there are less
    than 160, each comes several times, told apart by `copy`, which no unit sees: all sizes of teams then
    play equally many tasks in an iteration.

    Raises:
        WorkflowError: not a number from 2 to 12.
    """
    if not path.isdecimal() or not 2 <= int(path) <= 12:
        raise WorkflowError(f"[data] path of chain is its number of units, 2 to 12; got {path!r}")
    units = int(path)
    every = sorted(
        product(COLOURS, *[range(len(FACTS))] * units),
        key=lambda each: seed_for(0, "chain", *map(str, each)),
    )[:MOST_TASKS]
    copies = -(-LEAST_TASKS // len(every))
    for copy, (place, (start, *facts)) in product(range(copies), enumerate(every)):
        seen = {"start": start} | {f"fact{k}": FACTS[fact] for k, fact in enumerate(facts)}
        yield {
            "task_id": f"{start}-{''.join(map(str, facts))}" + (f"-{copy}" if copy else ""),
            "split": "dev" if place < len(every) // 4 else "train",
            "inputs": seen | {"copy": copy},
            "gold": {"answers": [COLOURS[(COLOURS.index(start) + sum(facts)) % len(COLOURS)]]},
        }


def right(episode: PlayedEpisode) -> Sequence[float | None]:
    """The share of words that are right, earned by every turn: the team stands for all of them."""
    at, hits = COLOURS.index(episode.inputs["start"]), 0
    units = len([name for name in episode.inputs if name.startswith("fact")])
    places = episode.trainable()
    for place, position in enumerate(places):
        at = (at + FACTS.index(episode.inputs[f"fact{place % units}"])) % len(COLOURS)
        hits += episode.turns[position]["response_text"] == COLOURS[at]
    values: list[float | None] = [None] * len(episode.turns)
    for position in places:
        values[position] = hits / len(places)
    return values
