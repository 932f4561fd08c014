"""Which round's answer a team gives: as its workflow says, the same in every replay."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from rewards.stopping.measures import returned
from rewards.stopping.traces import Traces
from tests.support.replays import Stage, content, stored
from workflows.errors import UsageError
from workflows.graph import RETURNED
from workflows.loading import load_workflow
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.returned import chosen_answer

PROBLEM = {"question": "How many?"}
UNSURE = "<verdict>unsatisfied</verdict>\n<confidence>low</confidence>\n<feedback>no</feedback>"


def stage(returns: str, drafts: list[str], **options: Any) -> Stage:
    """`evaluate_optimise` whose drafts are these, one after the other."""
    said = iter(drafts * 10)

    def reply(messages: Any, sampling: Any) -> str:
        text = str(messages[-1]["content"])
        if "Is this the final answer?" in text:
            return "continue"
        return UNSURE if "Is it right?" in text else next(said)

    options = {"max_rounds": len(drafts), **options}
    return Stage(load_workflow("evaluate_optimise", options, returns), PROBLEM, reply=reply)


def answer(said: str) -> str:
    return f"<answer>{said}</answer>"


@pytest.mark.parametrize(("returns", "expected"), [("first", "two"), ("majority", "three"), ("last", None)])
def test_a_team_of_rounds_gives_the_answer_that_it_is_told_to(returns: str, expected: str | None) -> None:
    drafts = [answer(said) for said in ("two", "three", "three", "four")]
    played = stage(returns, drafts).play()
    last = played.turns[-1]
    if expected is None:
        assert last["step"] != RETURNED
        return
    assert (last["step"], last["event"], json.loads(last["parsed"])) == (RETURNED, "control", expected)
    (parent,) = last["parents"]
    given = played.turns[parent]
    assert (given["step"], given["parsed"]) == ("generate", last["parsed"])
    assert played.episode["num_turns"] == len(played.turns)


def test_the_surest_is_where_the_stopper_would_soonest_have_stopped() -> None:
    drafts = [answer(said) for said in ("two", "three", "four")]
    scene = stage("surest", drafts, learned_stop=True)
    played = scene.play()
    asked = [t for t in played.turns if t["option_logprobs"] is not None]
    assert len(asked) == 2
    surest = max(asked, key=lambda t: t["option_logprobs"][0]["value"])
    draft = next(t for t in played.turns if (t["step"], t["round"]) == ("generate", surest["round"]))
    assert played.turns[-1]["parsed"] == draft["parsed"]
    again = scene.play(BaseEpisode.of(stored(played)))
    assert content(again) == content(played)


def test_what_can_not_be_read_is_not_given_while_another_round_has_an_answer() -> None:
    played = stage("majority", ["", "", answer("two")]).play()
    assert json.loads(played.turns[-1]["parsed"]) == "two"
    assert played.turns[-1]["format_valid"]


def test_the_choice_in_play_is_the_one_that_is_measured_on_stored_traces() -> None:
    luck = random.Random(5)
    for _ in range(200):
        rounds = luck.randrange(1, 6)
        said = [luck.choice("abc") for _ in range(rounds)]
        sure = [0.1 + round(luck.random() * 0.8, 1) for _ in range(rounds)]
        answers = [{"round": k, "branch": "", "parsed": f'"{s}"'} for k, s in enumerate(said)]
        decisions = [
            {"round": k, "branch": "", "option_logprobs": [{"name": "stop", "value": float(np.log(p))}]}
            for k, p in enumerate(sure[:-1])  # nobody is asked after the last one
        ]
        learned = np.array([[k < rounds - 1 for k in range(rounds)]])
        score = np.arange(rounds, dtype=float)[None]
        numbers = np.array([[ord(s) for s in said]])
        agreement = np.full((1, rounds), np.nan)
        last = np.array([rounds - 1])
        traces = Traces(last, score, score, np.array([sure]), learned, agreement, numbers)
        measured = returned(traces, traces.last)
        for how in ("last", "first", "majority", *(["surest"] if rounds > 1 else [])):
            assert chosen_answer(answers, decisions, how) == measured[how]


@pytest.mark.parametrize(
    ("use", "options", "returns", "words"),
    [
        ("debate", {}, "majority", "is an async function"),
        ("single", {}, "first", "answers once, in step"),
        ("evaluate_optimise", {}, "surest", "nobody says how sure"),
        ("evaluate_optimise", {"max_rounds": 1}, "first", "answers once"),
        ("evaluate_optimise", {}, "best", "use one of last, first, majority, surest"),
    ],
)
def test_a_choice_without_effect_is_refused(use: str, options: Any, returns: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_workflow(use, options, returns)
