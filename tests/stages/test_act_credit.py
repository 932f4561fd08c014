"""Several messages in one reply: each has its tokens, is replaced on its own, and is credited on its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rewards.channels.base import Frames
from rewards.channels.replayed import Message
from stages.players.choices import Choosing, candidates_of, episodes_of
from tests.stages.test_counterfactual_plays import play_all
from tests.support.replays import Stage, content, stored
from workflows.crew import Crew
from workflows.decisions import Decisions
from workflows.errors import UsageError
from workflows.pace import Spawning
from workflows.parsers import Tag
from workflows.playing.counterfactual import Counterfactual, Intervention
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output, TurnKey
from workflows.testing import ScriptedModel, replies
from workflows.vocabulary import Act, Op

SAID = 'Well: <message to="helper/0">alpha 🙂</message> and <message to="helper/1">beta</message>'


def crew() -> ScriptWorkflow:
    """Two helpers wait for what the lead writes to each of them, all in one reply."""

    async def hear(helper: Crew, brief: Output) -> Output:
        heard = await helper.receive()
        assert heard is not None
        return await helper.call("help", {"text": heard})

    async def run(team: Crew, task: Mapping[str, Any]) -> None:
        for brief in ("first", "second"):
            team.spawn("helper", brief, hear)
        reply = await team.call("lead", {"text": task["question"]})
        for act in reply.value:
            team.message(act["to"], act["text"], by=reply, detail={"characters": act["characters"]})
        came = await team.join()
        await team.call("end", {"text": [each.output.text for each in came]}, reads=[c.output for c in came])

    parser = Decisions(Tag("answer"), "answer", most=2, messages=True)
    roles = [Role("lead", "{text}", parser=parser), Role("helper", "{text}"), Role("end", "{text}")]
    steps = {"lead": "lead", "help": "helper", "end": "end"}
    return ScriptWorkflow("crew", roles, run, steps=steps, spawning=Spawning())


def says(messages: Any, sampling: Any) -> str:
    text = str(messages[-1]["content"])
    return SAID if text == "go" else f"heard {text}"


@pytest.fixture
def played() -> tuple[Stage, Played]:
    stage = Stage(crew(), {"question": "go"}, reply=says)
    return stage, stage.play()


def messages_of(play: Played) -> list[dict[str, Any]]:
    return [turn for turn in play.turns if turn["act"] == Act.MESSAGE]


def test_each_act_of_a_reply_has_the_sampled_tokens_that_say_it(played: tuple[Stage, Played]) -> None:
    _, play = played
    model = ScriptedModel(replies({".": "x"}))
    reply = next(turn for turn in play.turns if turn["step"] == "lead")
    said = []
    for act in messages_of(play):
        detail = json.loads(act["act_detail"])
        first, end = detail["tokens"]
        start, stop = detail["characters"]
        said.append(model.decode(reply["response_token_ids"][first:end]).strip())
        assert SAID[start:stop] == said[-1]
    assert said == ['<message to="helper/0">alpha 🙂</message>', '<message to="helper/1">beta</message>']


def test_one_message_is_replaced_and_the_others_are_what_they_were(played: tuple[Stage, Played]) -> None:
    stage, play = played
    first, _ = messages_of(play)
    key = TurnKey(first["step"], first["round"], first["branch"])
    asked = stage.asked
    nulled = stage.play(Counterfactual.at(stored(play), Intervention(key, Op.NULL, text="nothing")))
    texts = {t["branch"]: t["response_text"] for t in nulled.turns if t["step"] == "help"}
    assert texts == {"0": "heard nothing", "1": "heard beta"}
    assert stage.asked - asked == 2  # that helper, and the end
    assert json.loads(messages_of(nulled)[0]["parsed"]) == "alpha 🙂"  # its own row is what was said
    same = stage.play(Counterfactual.at(stored(play), Intervention(key, Op.PARAPHRASE, text="alpha 🙂")))
    assert content(same) == content(play)
    with pytest.raises(UsageError, match="not a reply of a role"):
        Counterfactual.at(stored(play), Intervention(key, Op.DROP))


def test_acts_are_candidates_in_the_place_of_their_reply(played: tuple[Stage, Played]) -> None:
    _, play = played
    episodes = episodes_of(stored(play))
    (rows,) = episodes.values()
    words = [c[0]["step"] for c in candidates_of(rows, episodes, Choosing([Op.NULL], acts=True))]
    assert words == ["message", "message", "help", "help", "end"]
    whole = [c[0]["step"] for c in candidates_of(rows, episodes, Choosing([Op.NULL]))]
    assert whole == ["lead", "help", "help", "end"]
    with pytest.raises(UsageError, match="resample replaces a reply as a whole"):
        Choosing([Op.NULL, Op.RESAMPLE], acts=True)


def test_an_act_is_played_by_itself_and_has_an_effect_of_its_own(
    played: tuple[Stage, Played], tmp_path: Path
) -> None:
    stage, play = played
    tables, receipt = play_all(tmp_path, stage, [play], Choosing([Op.NULL], acts=True))
    acts = tables["played_interventions"].filter(step="message")
    assert acts["skipped"].null_count() == acts.height == 2
    assert receipt["unequal"] == 0
    said = tables["turns"].filter(pl.col("episode_id").is_in(acts["play_id"].implode()), step="end")
    assert said["response_text"].str.contains("(no message)", literal=True).all()


def test_credit_of_an_act_lies_on_its_tokens_in_the_reply_that_decided_it() -> None:
    turns = pl.DataFrame(
        {
            "episode_id": ["e"] * 3,
            "turn_index": [0, 1, 2],
            "act": [None, "message", "message"],
            "decided_by": [None, 0, 0],
        },
        schema_overrides={"turn_index": pl.Int32, "decided_by": pl.Int32},
    )
    worth = pl.DataFrame(
        {
            "episode_id": ["e"] * 2,
            "turn_index": [1, 2],
            "op": ["null"] * 2,
            "credit": [0.5, -1.0],
            "first_token": [3, 8],
            "end_token": [6, 9],
        },
        schema_overrides={"turn_index": pl.Int32},
    )
    rows = Message("null")(Frames(turns.head(0), turns, tables={"message_credit": worth}))
    assert rows.rows() == [("e", 0, "message 1", 0.5, 3, 6, 1), ("e", 0, "message 2", -1.0, 8, 9, 2)]
