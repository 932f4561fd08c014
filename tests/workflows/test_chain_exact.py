"""The chain game by enumeration, held to laws: gains add up, one turn a unit has no gap, reverse no shift."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rewards.base import PlayedEpisode
from tests.learning.chain import COLOURS, FACTS, build, right, tasks
from tests.learning.chain_exact import Chain, Floats, steps_of

TEXTS = tuple(sorted((*COLOURS, "", "ba")))


def policies(units: int, seed: int) -> dict[str, Floats]:
    random = np.random.default_rng(seed)
    tables = random.random((units, len(FACTS), len(TEXTS), len(TEXTS))) ** 3
    return {f"unit{k}": table / table.sum(-1, keepdims=True) for k, table in enumerate(tables)}


def updates(start: Mapping[str, Floats], seed: int, order: list[str]) -> list[tuple[str, Floats]]:
    toward = policies(len(start), seed)
    return [(unit, 0.8 * start[unit] + 0.2 * toward[unit]) for unit in order]


@pytest.mark.parametrize("rounds", [1, 2])
def test_gains_add_up_and_a_unit_that_speaks_once_gains_what_fresh_plays_promise(rounds: int) -> None:
    chain, start = Chain(4, TEXTS, rounds), policies(4, 0)
    made = updates(start, 1, ["unit2", "unit0", "unit3", "unit1"])
    steps = steps_of(chain, start, made, lambda k: k)
    assert sum(s.gain for s in steps) == pytest.approx(
        chain.score({**start, **dict(made)}) - chain.score(start), abs=1e-14
    )
    assert all(step.own_shift == step.stale_gap == 0 for step in steps)
    assert all((step.gap < 1e-14) == (rounds == 1) for step in steps)


def test_in_reverse_speaking_order_stale_plays_shift_no_contexts_and_values_alone_make_the_gap() -> None:
    chain, start = Chain(4, TEXTS), policies(4, 2)
    names = sorted(start)
    reverse = steps_of(chain, start, updates(start, 3, names[::-1]), lambda k: 0)
    forward = steps_of(chain, start, updates(start, 3, names), lambda k: 0)
    assert [step.own_shift for step in reverse] == [0, 0, 0, 0]
    assert reverse[0].stale_gap == 0 < reverse[1].stale_gap
    assert all(step.own_shift > 1e-3 for step in forward[1:])
    assert max(step.shift for step in reverse) > 1e-3  # of all contexts, to the team after the update


def test_a_team_that_is_right_scores_1_and_the_reward_of_its_plays_says_so() -> None:
    chain, team = Chain(3, TEXTS), {}
    for unit in range(3):
        table = np.zeros((len(FACTS), len(TEXTS), len(TEXTS)))
        for fact in range(len(FACTS)):
            for place, text in enumerate(TEXTS):
                said = COLOURS[(COLOURS.index(text) + fact) % len(COLOURS)] if text in COLOURS else "ba"
                table[fact, place, TEXTS.index(said)] = 1
        team[f"unit{unit}"] = table
    assert chain.score(team) == pytest.approx(1, abs=1e-14)
    task = next(iter(tasks("3")))
    said, at = [], COLOURS.index(task["inputs"]["start"])
    for k in range(3):
        at = (at + FACTS.index(task["inputs"][f"fact{k}"])) % len(COLOURS)
        said.append(COLOURS[at])
    turns = [{"event": "llm", "trainable": True, "response_text": word} for word in said]
    assert right(PlayedEpisode("e", "ok", task["inputs"], task["gold"], turns)) == [1, 1, 1]
    turns[1]["response_text"] = "ba"
    assert right(PlayedEpisode("e", "ok", task["inputs"], task["gold"], turns)) == [pytest.approx(2 / 3)] * 3


def test_tasks_that_train_nothing_are_apart_and_the_workflow_has_a_turn_for_each_unit_and_round() -> None:
    every = list(tasks("5"))
    assert len({task["task_id"] for task in every}) == len(every) == 2 * 4 * 2**5
    assert sum(task["split"] == "dev" for task in every) == len(every) // 4
    assert len(build(3, 2).order) == 6
