"""Roles that choose among options: what their rows say, and stops that are held back or taken elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from typing import Any

import pytest

from workflows.engine import Message, Sampling, Weighed
from workflows.errors import UsageError, WorkflowError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.decision import drawn, is_stop_decision
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.playing.stopped import Stopped
from workflows.roles import Role
from workflows.state import TurnKey
from workflows.teams.stopping import HALT
from workflows.testing import ScriptedEngine, play_once, without_times
from workflows.vocabulary import Act, Origin

TASKS: dict[str, dict[str, Any]] = {
    "debate": {"question": "Why?"},
    "evaluate_optimise": {"question": "Why?"},
    "mask": {"question": "Who?"},
    "code": {"problem": "Add one.", "fn_name": "f", "public_tests": []},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "debate": {"rounds": 3},
    "evaluate_optimise": {"max_rounds": 4},
    "mask": {"stop_on_search_end": False},
    "code": {"reflect_without_tests": True},
}
# of plays without `learned_stop`, as they were before there was one
BEFORE = {
    "debate": "ae5b957740427217",
    "evaluate_optimise": "f11093754e377d22",
    "mask": "73dfa695a66bc3a3",
    "code": "5c39b6e4935b07e8",
}


def hash_of(played: Played) -> str:
    text = json.dumps(without_times(played), default=str, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def player_of(name: str, hold_stops: bool = False, reply: Any = None) -> Player:
    workflow = load_workflow(name, {**OPTIONS[name], "learned_stop": True})
    return player(workflow, hold_stops, reply)


def player(workflow: Any, hold_stops: bool = False, reply: Any = None) -> Player:
    from workflows.testing import echo_qa

    engines = {role: ScriptedEngine(reply or echo_qa, model_id=role) for role in workflow.roles}
    models = ModelMap({r: Model(r, r, "scripted") for r in engines}, {r: r for r in engines})
    return Player(workflow, engines, models, {}, PlayLimits(), 0, hold_stops)


def play(player: Player, name: str, base: Any = None) -> Played:
    task = {"task_id": "task", "split": "train", "inputs": TASKS[name]}
    return asyncio.run(player.play(task, iteration=0, sample=0, base=base))


def decisions(played: Played) -> list[dict[str, Any]]:
    return [turn for turn in played.turns if is_stop_decision(turn)]


@pytest.mark.parametrize("name", TASKS)
def test_without_a_learned_stop_a_team_plays_as_it_did(name: str) -> None:
    options = {"debate": {"rounds": 2}}.get(name, {})
    assert hash_of(play_once(load_workflow(name, options), TASKS[name])) == BEFORE[name]


@pytest.mark.parametrize("name", TASKS)
def test_a_decision_is_a_row_with_the_logprobs_of_both_options(name: str) -> None:
    rows = decisions(play(player_of(name), name))
    assert rows
    for row in rows:
        assert [option["name"] for option in row["option_logprobs"]] == ["stop", "continue"]
        assert math.fsum(math.exp(o["value"]) for o in row["option_logprobs"]) == pytest.approx(1)
        assert row["parsed"] in ('"stop"', '"continue"')
        assert row["step"] == HALT
        assert len(row["behaviour_logprobs"]) == len(row["response_token_ids"]) > 0
        assert row["act"] == (Act.STOP if row["parsed"] == '"stop"' else None)
        assert set(json.loads(row["act_detail"])) == {"decides", "source", "number", "options"}


@pytest.mark.parametrize("name", TASKS)
def test_held_back_stops_leave_no_trace_in_any_later_context(name: str) -> None:
    """The contexts of a trace whose stops are held back are those of a team that likes to go on."""
    forced = play(player_of(name, hold_stops=True), name)
    assert {json.loads(row["parsed"]) for row in decisions(forced)} == {"continue"}
    assert all(json.loads(row["act_detail"])["held_back"] for row in decisions(forced))

    def keen(messages: list[Message], sampling: Sampling) -> str:
        from workflows.testing import echo_qa

        return "continue" if "stop or continue" in messages[-1]["content"] else echo_qa(messages, sampling)

    free = play(player_of(name, reply=keen), name)
    places = [(t["step"], t["round"], t["branch"]) for t in forced.turns]
    assert places == [(t["step"], t["round"], t["branch"]) for t in free.turns]
    assert [t["context_hash"] for t in forced.turns] == [t["context_hash"] for t in free.turns]
    assert forced.episode["num_turns"] > 4


@pytest.mark.parametrize("name", TASKS)
def test_a_probe_ends_a_stored_episode_at_a_decision_from_the_same_context(name: str) -> None:
    forced = play(player_of(name, hold_stops=True), name)
    stored = without_times(forced)
    for row in decisions(forced):
        at = TurnKey(row["step"], row["round"], row["branch"])
        probe = play(player_of(name, hold_stops=True), name, Stopped.after(forced.turns, at))
        copied = [t for t in probe.turns if t["origin"] == Origin.COPIED]
        before = [t for t in forced.turns if t["turn_index"] <= row["turn_index"]]
        contexts = [t["context_hash"] for t in copied]
        assert contexts[: len(before)] == [t["context_hash"] for t in before]
        assert decisions(probe)[-1]["option_logprobs"] == row["option_logprobs"]
        assert {t["step"] for t in probe.turns[len(before) :]} <= {"decide"}
        assert probe.episode["status"] == "ok"
    assert without_times(forced) == stored


def test_samples_of_a_probe_have_seeds_of_their_own() -> None:
    forced = play(player_of("debate", hold_stops=True), "debate")
    at = TurnKey(HALT, 0, "")
    seeds = {
        json.loads(
            play(player_of("debate"), "debate", Stopped.after(forced.turns, at, sample=k)).turns[-1][
                "sampling"
            ]
        )["seed"]
        for k in (0, 0, 1, 2)
    }
    assert len(seeds) == 3


def test_an_episode_goes_on_where_it_stopped() -> None:
    free = play(player_of("debate"), "debate")
    last = decisions(free)[-1]
    assert json.loads(last["parsed"]) == "stop"
    at = TurnKey(last["step"], last["round"], last["branch"])
    longer = play(player_of("debate"), "debate", Stopped.after(free.turns, at, stops=False))
    assert longer.episode["num_turns"] > free.episode["num_turns"]


def test_only_a_stop_decision_can_be_taken_otherwise() -> None:
    forced = play(player_of("debate", hold_stops=True), "debate")
    with pytest.raises(UsageError, match="is not a stop decision"):
        Stopped.after(forced.turns, TurnKey("answer", 0, "0"))


def chooser(**more: Any) -> Role:
    return Role("chooser", prompt="{text}", options=("stop", "continue"), decides=Act.STOP, **more)


def test_a_stop_stands_in_no_prompt() -> None:
    sayer = Role("sayer", prompt="{text}")
    workflow = Workflow(
        "w",
        [chooser(), sayer],
        [
            LlmStep("halt", "chooser", {"text": "task.question"}),
            LlmStep("say", "sayer", {"text": lambda s: s["halt"].value}),
        ],
        [Edge("halt", "say")],
    )
    played = play_once(workflow, {"question": "?"})
    assert played.episode["status"] == "infra_error"
    assert "may not stand in a prompt" in played.episode["error"]


@pytest.mark.parametrize(
    ("options", "decides", "more", "message"),
    [
        (("a",), None, {}, "two or more different texts"),
        (("a", "a"), None, {}, "two or more different texts"),
        (("a", ""), None, {}, "two or more different texts"),
        (("a", "b", "c"), Act.STOP, {}, "takes two options"),
        ((), Act.SPAWN, {}, "takes two options"),
        (("a", "b"), None, {"conversation": True}, "keeps no conversation"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: tuple[str, ...], decides: Act | None, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkflowError, match=message):
        Role("r", prompt="{x}", options=options, decides=decides, **more)


def test_a_choice_is_drawn_with_its_probability_and_by_the_seed_alone() -> None:
    logprobs = [math.log(0.2), math.log(0.7), math.log(0.1)]
    seeds = range(2000)
    counts = [[drawn(logprobs, Sampling(1, seed=seed)) for seed in seeds].count(i) for i in range(3)]
    assert [count / len(seeds) for count in counts] == pytest.approx([0.2, 0.7, 0.1], abs=0.03)
    assert drawn(logprobs, Sampling(1, temperature=0)) == 1


def test_an_engine_that_can_not_weigh_is_refused_before_any_play() -> None:
    workflow = Workflow("w", [chooser()], [LlmStep("halt", "chooser", {"text": "task.question"})])
    one = player(workflow)

    class Plain:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            if name in ("weigh", "encode"):
                raise AttributeError(name)
            return getattr(self._engine, name)

    models = ModelMap({"m": Model("m", "m", "scripted")}, {"chooser": "m"})
    plain = Plain(ScriptedEngine(lambda *_: "x", model_id="m"))
    other = Player(workflow, {"m": plain}, models, {}, PlayLimits(), 0)  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="can't say: give the role a model"):
        asyncio.run(other.start())
    asyncio.run(one.start())


def test_weighed_options_sum_to_one_whatever_their_size() -> None:
    weighed = Weighed([[-1000.0, -2.0], [-1001.0]], 0, "processed_logprobs")
    assert math.fsum(map(math.exp, weighed.renormalised)) == pytest.approx(1)
    assert weighed.renormalised[1] - weighed.renormalised[0] == pytest.approx(1)
