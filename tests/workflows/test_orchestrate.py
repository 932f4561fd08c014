"""`orchestrate`: what a lead writes decides who is spawned, and when the work ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from tests.learning.spawn_game import ALONE, SPAWN, Pay, build
from workflows.acts import acted
from workflows.decisions import Decisions
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.parsers import Tag
from workflows.testing import play_once
from workflows.vocabulary import Act, Status

QUESTION = {"question": "How old is it?"}
TWO = "<spawn>when</spawn> and <spawn>where</spawn>"


def play(first: str, options: dict[str, Any] | None = None, then: str = "<answer>9</answer>") -> Any:
    def lead(messages: Any, sampling: Any) -> str:
        return first if messages[-1]["content"].count("none yet") else then

    said = {"lead": lead, "helper": "<answer>8</answer>"}
    return play_once(load_workflow("orchestrate", options or {}), QUESTION, said)


def acts(played: Any) -> list[tuple[Act, int | None]]:
    return [(each.act, each.decided_by) for each in acted(played.turns)]


def test_a_lead_spawns_reads_the_answers_and_stops() -> None:
    played = play(TWO)
    assert [(row["step"], row["branch"]) for row in played.turns if row["event"] == "llm"] == [
        ("lead", ""),
        ("help", "0"),
        ("help", "1"),
        ("lead", ""),
    ]
    last = next(row for row in played.turns if (row["step"], row["round"]) == ("lead", 1))
    assert "Answer 1: 8\nAnswer 2: 8" in json.loads(last["messages"])[-1]["content"]
    assert [act for act, _ in acts(played)] == ["spawn", "spawn", "return", "return", "aggregate", "stop"]
    spawn = acted(played.turns)[0]
    start, end = spawn.detail["characters"]
    assert TWO[start:end] == "<spawn>when</spawn>"
    assert acts(played)[-1] == (Act.STOP, last["turn_index"])
    assert json.loads(played.turns[-1]["parsed"]) == "9"


def test_a_lead_that_answers_spawns_nobody() -> None:
    played = play("<answer>7</answer>")
    assert [act for act, _ in acts(played)] == [Act.STOP]
    assert json.loads(played.turns[-1]["parsed"]) == "7"


@pytest.mark.parametrize(
    ("reply", "spawned", "answer"),
    [
        ("no decision", 0, "no decision"),
        ("<spawn>a</spawn>" * 5, 3, "9"),
        ("<spawn>a</spawn><answer>6</answer>", 0, "6"),
        ("", 0, None),
    ],
)
def test_a_decision_that_can_not_be_read_is_malformed_and_the_play_goes_on(
    reply: str, spawned: int, answer: str | None
) -> None:
    played = play(reply)
    assert played.turns[0]["status"] == Status.MALFORMED
    assert played.episode["status"] == "ok"
    assert sum(act == Act.SPAWN for act, _ in acts(played)) == spawned
    assert json.loads(played.turns[-1]["parsed"]) == answer


def test_calls_of_tools_decide_the_same() -> None:
    call = '<tool_call>{"name": "spawn", "arguments": {"brief": "when"}}</tool_call>'
    done = '<tool_call>{"name": "answer", "arguments": {"answer": "9"}}</tool_call>'
    played = play(call * 2, {"form": "tool_calls"}, done)
    assert [act for act, _ in acts(played)] == ["spawn", "spawn", "return", "return", "aggregate", "stop"]
    assert json.loads(played.turns[-1]["parsed"]) == "9"
    broken = play('<tool_call>{"name": "spawn"}</tool_call>', {"form": "tool_calls"}, done)
    assert broken.turns[0]["status"] == Status.MALFORMED


def test_the_first_answer_may_be_enough() -> None:
    played = play(TWO, {"first": 1})
    (cancel,) = [each for each in acted(played.turns) if each.act == Act.CANCEL] or [None]
    ended = {each.instance for each in acted(played.turns) if each.act == Act.RETURN}
    assert ended | set(cancel.recipients if cancel else ()) == {"helper/0", "helper/1"}
    assert played.episode["status"] == "ok"


@pytest.mark.parametrize("task", ["questions", "reading", "mathematics", "code"])
@pytest.mark.parametrize("form", ["tags", "tool_calls"])
def test_it_is_built_for_every_kind_of_task(task: str, form: str) -> None:
    assert load_workflow("orchestrate", {"task": task, "form": form}).answer_step == "final"


@pytest.mark.parametrize(
    "options", [{"max_width": 0}, {"first": -1}, {"form": "prose"}, {"order": "later"}, {"helper_tokens": 0}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        load_workflow("orchestrate", options)


def test_messages_say_to_whom() -> None:
    parser = Decisions(Tag("answer"), "answer", 2, messages=True)
    parsed = parser.parse('<message to="helper/0, helper/1">hurry</message>')
    assert [(each["act"], each["to"], each["text"]) for each in parsed.value] == [
        ("message", ["helper/0", "helper/1"], "hurry")
    ]


@pytest.mark.parametrize(
    ("verb", "word", "earned"),
    [
        ("see", SPAWN, 0.6),
        ("see", ALONE, 0.0),
        ("hear", SPAWN, 0.6),
        ("hear", ALONE, 1.0),
        ("hear", "ki", 0.0),
    ],
)
def test_the_game_of_spawning_pays_as_it_says(verb: str, word: str, earned: float) -> None:
    played = play_once(build(), {"verb": verb, "symbol": "red"}, {"lead": word, "helper": "ki"})
    turns = [{**row, "parsed": json.loads(row["parsed"] or "null")} for row in played.turns]
    values = Pay()(PlayedEpisode("e", "ok", {}, {}, turns))
    assert [value for value in values if value is not None] == [pytest.approx(earned)]
