"""Acts of a team are rows of their own, below the turn that decided them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.format import Format
from tests.support.replays import Stage, stored
from workflows.acts import acted, spawner_of
from workflows.playing.base_episode import BaseEpisode
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.team import Team
from workflows.testing import play_once
from workflows.vocabulary import NOT_THE_POLICYS_DOING, POLICYS_DOING, WITH_A_REPLY, Act, Status


async def _run(team: Team, task: Mapping[str, Any]) -> None:
    plan = await team.call("lead", {"question": task["question"]})
    team.act(Act.MESSAGE, {"said": plan}, by=plan, to=["helper/0", "helper/1"])
    team.act(
        Act.STOP, "enough", by=plan, options={"stop": -0.1, "continue": -2.4}, detail={"source": "learned"}
    )
    team.act(Act.STOP, "the budget is used up", detail={"source": "budget"})


WORKFLOW = ScriptWorkflow("acts", [Role("lead", "{question}")], _run)


def test_an_act_says_who_decided_it_for_whom_and_as_which_of_its_acts() -> None:
    turns = play_once(WORKFLOW, {"question": "?"}, {"lead": "hello"}).turns
    message, stop, forced = acted(turns)
    assert [turn["step"] for turn in turns] == ["lead", "message", "stop", "stop"]
    assert (message.act, message.role, message.decided_by, message.instance) == (Act.MESSAGE, "lead", 0, None)
    assert message.recipients == ("helper/0", "helper/1")
    assert message.value == {"said": "hello"}
    assert (message.detail["number"], stop.detail["number"]) == (0, 1)
    assert stop.options == {"stop": -0.1, "continue": -2.4}
    assert [turn["parents"] for turn in turns] == [[], [0], [0], []]
    assert (forced.decided_by, forced.role, forced.detail) == (None, None, {"source": "budget", "number": 0})


def test_acts_are_served_by_a_replay_as_they_were() -> None:
    stage = Stage(WORKFLOW, {"question": "?"})
    first = stage.play()
    again = stage.play(BaseEpisode.of(stored(first)))
    assert stage.asked == 1
    assert {turn["origin"] for turn in again.turns} == {"copied"}
    assert acted(again.turns) == acted(first.turns)


def test_the_id_of_a_play_names_its_spawner() -> None:
    assert spawner_of("helper/0") == ""
    assert spawner_of("helper/0.12") == "0"
    with pytest.raises(ValueError, match="role/branch"):
        spawner_of("helper")


def test_a_turn_that_was_called_off_gets_no_reward_and_has_no_reply() -> None:
    assert {Status.CALLED_OFF} == POLICYS_DOING - WITH_A_REPLY
    assert Status.CALLED_OFF not in NOT_THE_POLICYS_DOING
    row = {"event": "llm", "trainable": True, "status": "ok", "format_valid": True, "role": "a", "step": "a"}
    turns = [row, {**row, "status": "called_off", "format_valid": None}]
    episode = PlayedEpisode("e", "ok", {}, {}, turns)
    assert episode.trainable() == [0]
    assert list(Format()(episode))[1] is None
