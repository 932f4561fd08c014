"""The signalling game: what it shows to whom, and when it is won."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.exact_match import ExactMatch
from workflows.engine import Message, Sampling
from workflows.errors import WorkflowError
from workflows.roles import RoleSettings
from workflows.teams.signal import SYMBOLS, build, tasks
from workflows.testing import play_once


def code(messages: Sequence[Message], sampling: Sampling) -> str:
    """A language: a symbol is said as the word two places on, and heard the other way round."""
    verb, word, _ = messages[-1]["content"].split()
    places = 2 if verb == "see" else -2
    return SYMBOLS[(SYMBOLS.index(word) + places) % len(SYMBOLS)]


def played(reply: Any, symbol: str = "red") -> list[Mapping[str, Any]]:
    # the scripted tokenizer has pieces of words where the game's model has whole words
    roles = {role: RoleSettings(max_response_tokens=8) for role in ("sender", "receiver")}
    return list(play_once(build(), {"symbol": symbol}, reply, role_settings=roles).turns)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_team_with_a_language_names_every_symbol(symbol: str) -> None:
    speak, name = played({"sender": code, "receiver": code}, symbol)
    assert name["response_text"] == symbol
    assert symbol not in json.loads(name["messages"])[-1]["content"]
    assert name["parents"] == [speak["turn_index"]]


def test_a_word_of_the_full_length_is_whole() -> None:
    turns = play_once(build(), {"symbol": "red"}, {"sender": "ba", "receiver": "re"}).turns
    assert {len(turn["response_token_ids"]) for turn in turns} == {1}
    assert {turn["status"] for turn in turns} == {"ok"}


def test_both_earn_what_the_name_is_worth() -> None:
    turns = [
        {
            "event": "llm",
            "trainable": True,
            "step": s,
            "status": "ok",
            "format_valid": True,
            "parsed": p,
            "response_text": p,
        }
        for s, p in (("speak", "ba"), ("name", "red"))
    ]
    for gold, value in (("red", 1.0), ("green", 0.0)):
        episode = PlayedEpisode("e", "ok", {}, {"answers": [gold]}, turns)
        assert ExactMatch(answer_step="name")(episode) == [value, value]


def test_tasks_are_the_symbols_in_both_splits() -> None:
    rows = list(tasks("4"))
    assert [row["inputs"]["symbol"] for row in rows] == [*SYMBOLS[:4]] * 2
    assert len({row["task_id"] for row in rows}) == 8
    for bad in ("1", "9", "four", ""):
        with pytest.raises(WorkflowError, match="2 to 8 symbols"):
            list(tasks(bad))


def test_every_word_of_the_game_is_one_token() -> None:
    from stages.weights.shipped import WORDS

    assert set(SYMBOLS) < set(WORDS)
