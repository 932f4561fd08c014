"""The game of the grouping ablation, and that its groupings compare what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import polars as pl
import pytest

from rewards.base import PlayedEpisode
from rewards.credit.group_relative import GroupRelative
from tests.learning.relay import RIGHT, SYMBOLS, Pay, build, right
from workflows.engine import Message, Sampling
from workflows.roles import RoleSettings
from workflows.testing import play_once

WAGES = {"keeper": 10.0}
PAY = Pay(wages=WAGES, prizes={"keeper": 10.0}, raise_per_round=3.0, growth=3.0)


def knows(messages: Sequence[Message], sampling: Sampling) -> str:
    """What a solved team says: a round is known by the verb, a role by the last word."""
    verb, symbol, ask = messages[-1]["content"].split()
    role = {"say": "runner", "name": "keeper"}[ask]
    return RIGHT[role, ["see", "hear"].index(verb)][SYMBOLS.index(symbol)]


def played(reply: Any, symbol: str) -> PlayedEpisode:
    # the scripted tokenizer has pieces of words where the game's model has whole words
    roles = {role: RoleSettings(max_response_tokens=8) for role in ("runner", "keeper")}
    turns = list(play_once(build(), {"symbol": symbol}, reply, role_settings=roles).turns)
    return PlayedEpisode("e", "ok", {"symbol": symbol}, {"answers": [symbol]}, turns)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_prompts_tell_all_that_a_solved_team_needs(symbol: str) -> None:
    episode = played({"runner": knows, "keeper": knows}, symbol)
    assert [(t["role"], t["round"]) for t in episode.turns] == [
        (role, round) for round, role in product((0, 1), ("runner", "keeper"))
    ]
    assert right(episode) == [1.0] * 4


def test_a_wrong_word_of_the_keeper_earns_more_than_a_right_one_of_the_runner() -> None:
    won, lost = (played({"runner": r, "keeper": r}, "red") for r in (knows, "zz"))
    assert right(lost) == [0.0] * 4
    assert PAY(won) == [1.0, 20.0, 6.0, 43.0]
    assert PAY(lost) == [0.0, 10.0, 3.0, 13.0]
    assert Pay()(won) == right(won)


@pytest.mark.parametrize(
    ("by", "apart"),
    [
        ("task", ()),
        ("task_round", ("round",)),
        ("task_role", ("role",)),
        ("task_role_round", ("role", "round")),
    ],
)
def test_a_grouping_forgives_a_shift_of_what_it_keeps_apart(by: Any, apart: tuple[str, ...]) -> None:
    """Pay on other scales changes no advantage where turns of those scales are never compared."""
    turns = frame()
    advantages = GroupRelative(by=by)(turns)["advantage"]
    for column, value in (("round", 1), ("role", "keeper")):
        raised = turns.with_columns(reward=pl.col("reward") + 8.0 * (pl.col(column) == value))
        same = GroupRelative(by=by)(raised)["advantage"].equals(advantages)
        assert same == (column in apart)


def frame() -> pl.DataFrame:
    rows: list[Mapping[str, Any]] = [
        {
            "episode_id": f"g/{sample}",
            "group_id": "g",
            "turn_index": index,
            "role": role,
            "step": role,
            "round": round,
            "context_hash": "c",
            "reward": float((sample + index) % 3),
        }
        for sample in range(4)
        for index, (round, role) in enumerate(product((0, 1), ("runner", "keeper")))
    ]
    return pl.DataFrame(rows)
