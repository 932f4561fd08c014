"""The player: what every row says, and what is refused.

Which step runs when is the matter of test_execution.py, what fails how of test_play_failures.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.support.small_plays import note, play, say, seeded, workflow
from workflows.engine import Message, Sampling
from workflows.errors import UsageError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import Tag
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import Role, RoleSettings
from workflows.state import State
from workflows.testing import ScriptedEngine, ScriptedModel, play_once, without_times
from workflows.trajectory import EPISODES, STATUSES, TURNS, rows_to_table, seed_for
from workflows.vocabulary import StopReason

NO_MODELS = ModelMap({}, {})


def test_gold_never_reaches_a_workflow() -> None:
    w = workflow([say("a")])
    player = Player(w, {"m": ScriptedEngine(seeded)}, MAP, {}, PlayLimits(), 0)
    task = {"task_id": "t", "inputs": {"question": "?"}, "gold": {"answers": ["x"]}}
    with pytest.raises(UsageError, match="gold"):
        asyncio.run(player.play(task, iteration=0, sample=0))


MAP = ModelMap({"m": Model("m", "b", "scripted")}, {"sayer": "m"})


# --- rows ---------------------------------------------------------------------------------------


def said_in(step: str) -> Callable[[State], str]:
    return lambda state: state[step].text


def team(roles: int = 3) -> Workflow:
    speakers = [Role(f"r{i}", "{text}", Tag("a")) for i in range(roles)]
    steps = [
        LlmStep(f"s{i}", f"r{i}", {"text": "task.question" if i == 0 else said_in(f"s{i - 1}")})
        for i in range(roles)
    ]
    return Workflow("team", speakers, steps, [Edge(f"s{i}", f"s{i + 1}") for i in range(roles - 1)])


def play_team(groups: Mapping[str, str], **versions: int) -> tuple[Played, dict[str, ScriptedEngine]]:
    ids = sorted(set(groups.values()))
    engines = {m: ScriptedEngine(seeded, model_id=m, base_id=f"base {m}") for m in ids}
    for model_id, version in versions.items():
        engines[model_id].policy_version = version
    models = ModelMap({m: Model(m, f"base {m}", "scripted", trainable=m != "frozen") for m in ids}, groups)
    player = Player(team(), engines, models, {}, PlayLimits(), 7)
    task = {"task_id": "t", "split": "dev", "inputs": {"question": "who?"}}
    return asyncio.run(player.play(task, iteration=3, sample=2)), engines


REGIMES = [
    {"r0": "m", "r1": "m", "r2": "m"},
    {"r0": "m", "r1": "n", "r2": "frozen"},
    {"r0": "m", "r1": "m", "r2": "n"},
]


def test_sharing_regimes_give_the_same_turns_by_other_models() -> None:
    by_model = {"model_id", "base_id", "trainable", "team_version"}
    played = [without_times(play_team(groups)[0]) for groups in REGIMES]
    for (turns, episode), groups in zip(played, REGIMES, strict=True):
        assert [t["model_id"] for t in turns] == [groups[f"r{i}"] for i in range(3)]
        assert [t["trainable"] for t in turns] == [groups[f"r{i}"] != "frozen" for i in range(3)]
        assert episode == played[0][1]
        for turn, first in zip(turns, played[0][0], strict=True):
            assert {k: v for k, v in turn.items() if k not in by_model} == {
                k: v for k, v in first.items() if k not in by_model
            }


def test_rows_hold_exactly_what_the_engine_took_and_returned() -> None:
    played, engines = play_team(REGIMES[0])
    tokenizer = ScriptedModel(seeded)
    for turn, completion in zip(played.turns, engines["m"].completions, strict=True):
        assert turn["response_token_ids"] == completion.token_ids
        assert turn["behaviour_logprobs"] == completion.logprobs
        assert turn["prompt_token_ids"] == tokenizer.render(json.loads(turn["messages"]))
        assert turn["num_prompt_tokens"] == len(turn["prompt_token_ids"])
        assert turn["response_text"] == tokenizer.decode(completion.token_ids)
        assert turn["logprobs_mode"] == "processed_logprobs"
    episode = played.episode
    assert episode["num_turns"] == 3
    assert episode["num_prompt_tokens"] == sum(t["num_prompt_tokens"] for t in played.turns)
    assert episode["num_response_tokens"] == sum(len(c.token_ids) for c in engines["m"].completions)


class Shouts(ScriptedModel):
    """Another tokenizer: it reads everything in capitals."""

    tokenizer_hash = "shouts"

    def encode(self, text: str) -> list[int]:
        return super().encode(text.upper())


def test_each_engine_renders_counts_and_cuts_with_its_own_tokenizer() -> None:
    engines = {m: ScriptedEngine(seeded, model_id=m) for m in ("m", "n")}
    engines["n"].model = Shouts(seeded)
    engines["n"].tokenizer_hash = "shouts"
    models = ModelMap({m: Model(m, m, "scripted") for m in engines}, {"r0": "m", "r1": "n", "r2": "m"})
    player = Player(team(), engines, models, {}, PlayLimits(), 7)
    task = {"task_id": "t", "inputs": {"question": "a question in small letters"}}
    played = asyncio.run(player.play(task, iteration=0, sample=0))
    for turn in played.turns:
        engine = engines[turn["model_id"]]
        assert turn["prompt_token_ids"] == engine.render(json.loads(turn["messages"]))
        assert turn["num_prompt_tokens"] == len(turn["prompt_token_ids"])
        assert turn["response_text"] == engine.model.decode(turn["response_token_ids"])


def test_the_engine_is_told_the_limit_and_the_seed_of_the_row() -> None:
    told: list[Sampling] = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        told.append(sampling)

    settings = {"sayer": RoleSettings(max_response_tokens=9, temperature=0.5, stop=("</a>",))}
    w = workflow([say("a"), say("b")], [Edge("a", "b")])
    played = play(w, before=before, role_settings=settings)
    assert [t.as_dict() for t in told] == [json.loads(t["sampling"]) for t in played.turns]
    assert [t.max_tokens for t in told] == [9, 9]
    assert told[0].seed != told[1].seed


def test_a_row_says_where_it_stands_and_how_it_was_sampled() -> None:
    turn = play_team(REGIMES[0])[0].turns[1]
    assert turn["episode_id"] == "00003/t/2"
    assert (turn["iteration"], turn["split"], turn["task_id"], turn["sample"]) == (3, "dev", "t", 2)
    assert (turn["event"], turn["step"], turn["role"], turn["origin"]) == ("llm", "s1", "r1", "sampled")
    assert json.loads(turn["sampling"]) == {
        "max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": [],
        "seed": seed_for(7, 3, "t", 2, "s1", 0, ""),
    }  # fmt: skip
    assert 0 <= turn["queued_at"] <= turn["ended_at"]


def test_the_version_of_a_row_is_the_one_that_was_asked_not_the_one_at_its_return() -> None:
    played, _ = play_team(REGIMES[1], m=4, n=2)
    assert [t["policy_version"] for t in played.turns] == [4, 2, 0]
    assert [json.loads(t["team_version"]) for t in played.turns] == [{"m": 4, "n": 2, "frozen": 0}] * 3

    engine = ScriptedEngine(seeded, model_id="m")

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        engine.policy_version += 1  # new weights while the reply is under way

    engine._before = before
    player = Player(workflow([say("a")]), {"m": engine}, MAP, {}, PlayLimits(), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert (played.turns[0]["policy_version"], played.turns[0]["team_version"]) == (0, '{"m":0}')


def test_equal_contexts_have_equal_hashes_and_others_do_not() -> None:
    w = workflow([say("a"), say("b"), say("c", lambda s: "other")], [Edge("a", "b"), Edge("b", "c")])
    one, same, other = (t["context_hash"] for t in play(w).turns)
    assert one == same != other


def test_samples_of_a_group_differ_and_the_same_sample_repeats() -> None:
    texts = [
        play_once(team(), {"question": "?"}, seeded, sample=i).turns[0]["response_text"] for i in (0, 1, 0)
    ]
    assert texts[0] == texts[2] != texts[1]


def test_all_rows_fit_their_schemas() -> None:
    failing = note("a", lambda s: s.item)
    branches = workflow([note("a", lambda s: s.item, for_each=lambda s: ["x", "y"])])
    for w in (team(), branches, workflow([failing])):
        played = play(w)
        rows_to_table(played.turns, TURNS)
        rows_to_table([played.episode], EPISODES)
        assert all(set(row) == set(TURNS.names) for row in played.turns)
        assert set(played.episode) == set(EPISODES.names)
        assert played.episode["stop_reason"] in set(StopReason)
        assert all(row["status"] in STATUSES for row in played.turns)


def test_lone_surrogates_reach_no_engine_and_no_file() -> None:
    steps = [note("a", lambda s: "\udc80"), say("b", lambda s: s["a"].value)]
    played = play_once(workflow(steps, [Edge("a", "b")]), {"question": "\ud800"}, seeded)
    assert played.episode["status"] == "ok"
    rows_to_table(played.turns, TURNS)


@pytest.mark.parametrize("values", [
    {"max_turns": 0}, {"call_attempts": 0}, {"call_timeout_seconds": float("inf")},
    {"tool_timeout_seconds": 0}, {"episode_timeout_seconds": float("nan")}, {"backoff_seconds": -1},
])  # fmt: skip
def test_limits_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        PlayLimits(**values)


@pytest.mark.parametrize(("models", "role_settings", "message"), [
    (ModelMap({"m": Model("m", "m", "x")}, {"seyer": "m"}), {}, "did you mean 'sayer'"),
    (NO_MODELS, {}, "role 'sayer' of workflow 'w' has no model"),
    (ModelMap({"n": Model("n", "n", "x")}, {"sayer": "n"}), {}, "model 'n' has no engine; engines: m"),
    (MAP, {"seyer": RoleSettings()}, "the settings names role 'seyer'"),
    (MAP, {"sayer": RoleSettings(max_response_tokens=9000)}, "leaves no room for a prompt in the 8192"),
])  # fmt: skip
def test_a_player_whose_parts_do_not_fit_each_other_is_refused(
    models: ModelMap, role_settings: dict[str, RoleSettings], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Player(workflow([say("a")]), {"m": ScriptedEngine(seeded)}, models, role_settings, PlayLimits(), 0)
