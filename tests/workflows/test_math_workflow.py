"""The built-in workflow `math`: who sees what, and what is made of replies that break their format."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import cloudpickle
import pytest

from workflows.echo import echo_form
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.teams.math import ERROR_TYPES, STATUSES, build
from workflows.testing import ScriptedEngine, play_once
from workflows.trajectory import MALFORMED, OK

PROBLEM = "What is 6 times 7?"
SAID = {
    "solver": "<SOLUTION>6 * 7 = 41</SOLUTION><ANSWER>41</ANSWER>",
    "verifier": "<STATUS>Incorrect</STATUS><ERROR_TYPE>calculation</ERROR_TYPE><FEEDBACK>off by 1</FEEDBACK>",
    "refiner": "<refined_solution>6 * 7 = 42</refined_solution> <answer>42</answer>",
    "finaliser": "<FINAL_SOLUTION>42 it is</FINAL_SOLUTION>\n\n<FINAL_ANSWER>42</FINAL_ANSWER>\n",
}
CHAIN = ["solve", "verify", "refine", "finalise"]


def play(said: dict[str, str] | None = None, settings: Any = None, **options: Any) -> Played:
    return play_once(build(**options), {"problem": PROBLEM}, SAID | (said or {}), role_settings=settings)


def prompt(played: Played, step: str) -> str:
    (turn,) = [t for t in played.turns if t["step"] == step]
    return json.loads(turn["messages"])[-1]["content"]


def parsed(played: Played, step: str) -> Any:
    (turn,) = [t for t in played.turns if t["step"] == step]
    return json.loads(turn["parsed"])


def test_all_four_speak_in_turn_and_each_sees_the_raw_text_of_those_before() -> None:
    played = play()
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
    assert [t["step"] for t in played.turns] == CHAIN
    assert [t["status"] for t in played.turns] == [OK] * 4
    assert [t["parents"] for t in played.turns] == [[], [0], [0, 1], [0, 1, 2]]
    roles = list(SAID)
    for position, step in enumerate(CHAIN):
        asked = prompt(played, step)
        assert PROBLEM in asked
        for other, role in enumerate(roles):
            assert (SAID[role].strip() in asked) == (other < position)


def test_values_are_by_tag_and_choices_have_one_spelling() -> None:
    played = play()
    assert parsed(played, "verify") == {
        "STATUS": "incorrect", "ERROR_TYPE": "calculation", "FEEDBACK": "off by 1",
    }  # fmt: skip
    assert parsed(played, "refine") == {"REFINED_SOLUTION": "6 * 7 = 42", "ANSWER": "42"}
    assert parsed(played, "finalise")["FINAL_ANSWER"] == "42"


BROKEN = {
    "solver": ["41", "<ANSWER>41</ANSWER>", "<SOLUTION>s</SOLUTION><ANSWER></ANSWER>",
               "So: <SOLUTION>s</SOLUTION><ANSWER>41</ANSWER>"],
    "verifier": [SAID["verifier"].replace("Incorrect", "wrong"),
                 SAID["verifier"].replace("calculation", "typo"), "<STATUS>correct</STATUS>"],
    "refiner": [SAID["solver"], SAID["refiner"] + "<ANSWER>43</ANSWER>", "<REFINED_SOLUTION>s"],
    "finaliser": ["<FINAL_SOLUTION>42</FINAL_SOLUTION>", "<ANSWER>42</ANSWER>", SAID["finaliser"] + "Done."],
}  # fmt: skip


@pytest.mark.parametrize(("role", "reply"), [(role, r) for role, all_ in BROKEN.items() for r in all_])
def test_a_malformed_reply_is_marked_and_the_chain_goes_on(role: str, reply: str) -> None:
    played = play({role: reply})
    statuses = {t["role"]: t["status"] for t in played.turns}
    assert statuses == dict.fromkeys(SAID, OK) | {role: MALFORMED}
    assert played.episode["status"] == "ok"
    for step in CHAIN[CHAIN.index(played.turns[list(SAID).index(role)]["step"]) + 1 :]:
        assert reply.strip() in prompt(played, step)


@pytest.mark.parametrize(("reply", "answer"), [
    ("<FINAL_ANSWER>41</FINAL_ANSWER> no: <FINAL_ANSWER>42</FINAL_ANSWER>", "42"),
    ("<FINAL_ANSWER>42</FINAL_ANSWER><FINAL_ANSWER></FINAL_ANSWER>", "42"),
    ("<FINAL_SOLUTION>42</FINAL_SOLUTION>", ""),
    ("42", ""),
])  # fmt: skip
def test_a_broken_final_reply_reads_as_the_last_filled_tag_or_nothing(reply: str, answer: str) -> None:
    assert parsed(play({"finaliser": reply}), "finalise")["FINAL_ANSWER"] == answer


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_every_status_and_error_type_is_in_the_format_and_in_the_prompt(status: str, error_type: str) -> None:
    said = f"<STATUS>{status}</STATUS><ERROR_TYPE>{error_type}</ERROR_TYPE><FEEDBACK>f</FEEDBACK>"
    played = play({"verifier": said})
    assert {t["status"] for t in played.turns} == {OK}
    assert status in prompt(played, "verify")
    assert error_type in prompt(played, "verify")


def test_an_empty_reply_is_named_not_left_blank() -> None:
    played = play({"solver": " "})
    assert "(no reply)" in prompt(played, "verify")


def test_a_long_prompt_loses_words_of_the_oldest_reply_and_never_its_result_or_the_form() -> None:
    said = SAID | {"solver": f"<SOLUTION>{'x1 ' * 120}</SOLUTION><ANSWER>41</ANSWER>"}
    for step, role in list(zip(CHAIN, SAID, strict=True))[1:]:
        whole = play(said).turns[CHAIN.index(step)]["num_prompt_tokens"]
        played = play(said, {role: RoleSettings(max_prompt_tokens=whole - 200)})
        turn = played.turns[CHAIN.index(step)]
        assert turn["status"] == OK
        assert set(json.loads(turn["cut"])) == {"solution"}
        assert 0 < json.loads(turn["cut"])["solution"]["words"] < 120
        asked = prompt(played, step)
        assert "[…] x1" in asked
        assert "<ANSWER>41</ANSWER>" in asked
        assert PROBLEM in asked
        assert asked.endswith(">")


def test_thoughts_are_nobodys_business() -> None:
    thoughts = "<ANSWER>40</ANSWER>? Hmm.</think>"
    played = play({role: thoughts + said for role, said in SAID.items()}, reasoning=True)
    assert {t["status"] for t in played.turns} == {OK}
    assert all("Hmm" not in t["messages"] for t in played.turns)
    assert {t["status"] for t in play({"solver": thoughts + SAID["solver"]}).turns[:1]} == {MALFORMED}


@pytest.mark.parametrize("groups", [["all"] * 4, ["draft", "draft", "final", "final"], list(SAID)])
def test_who_speaks_with_which_weights_changes_no_word(groups: list[str]) -> None:
    workflow = build()
    of_role = dict(zip(workflow.roles, groups, strict=True))
    engines = {m: ScriptedEngine(echo_form, model_id=m) for m in of_role.values()}
    models = ModelMap({m: Model(m, m, "scripted") for m in engines}, of_role)
    player = Player(workflow, engines, models, {}, PlayLimits(), run_seed=3)
    task = {"task_id": "task", "split": "train", "inputs": {"problem": PROBLEM}}
    played = asyncio.run(player.play(task, iteration=0, sample=0))
    assert {t["role"]: t["model_id"] for t in played.turns} == of_role
    alone = play_once(workflow, {"problem": PROBLEM}, echo_form, seed=3)
    for mine, other in zip(played.turns, alone.turns, strict=True):
        for column in ("step", "messages", "prompt_token_ids", "response_token_ids", "parsed", "status"):
            assert mine[column] == other[column]


def test_the_scripted_replies_give_a_group_something_to_learn_from() -> None:
    statuses: Counter[str] = Counter()
    answers = set()
    for sample in range(12):
        played = play_once(build(), {"problem": PROBLEM}, echo_form, sample=sample)
        statuses.update(t["status"] for t in played.turns)
        answers.add(parsed(played, "finalise")["FINAL_ANSWER"])
    assert set(statuses) == {OK, MALFORMED}
    assert answers >= {"42", "13"}


def test_it_is_a_built_in_that_travels() -> None:
    workflow = cloudpickle.loads(cloudpickle.dumps(load_workflow("math", {})))
    assert play_once(workflow, {"problem": PROBLEM}, SAID).turns[-1]["step"] == workflow.answer_step
    with pytest.raises(UsageError, match="reasoning"):
        load_workflow("math", {"reasoning": "yes"})
