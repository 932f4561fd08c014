"""Reward `pass_rate_by_round`: what each round added, who gets it, and what is no number."""

from __future__ import annotations

import json
import math
import pickle
import random
from typing import Any

import pytest

from rewards import pass_rate_by_round
from rewards.base import PlayedEpisode
from rewards.by_round import gains, next_gain
from rewards.format import Format
from rewards.loading import load_reward
from rewards.pass_rate_by_round import PassRateByRound
from rewards.scoring.reasons import kind_of
from rewards.scoring.score import score_turns
from rewards.scoring.table import NO_VALUES
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from workflows.errors import UsageError
from workflows.teams.code import build
from workflows.testing import play_once
from workflows.tools.code.cases import CodeTests
from workflows.tools.code.judge import Report
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table

PUBLIC = PassRateByRound(tests="public")
PRIVATE = PassRateByRound(sandbox="none")


def code_of(passed: int) -> str:
    """A program that passes the first `passed` of the cases of `TESTS`."""
    return f"def more(n):\n    return n + 1 if n < {passed} else None"


TESTS = {
    "kind": "call", "fn_name": "more", "checker": "standard", "setup": "",
    "cases": [{"args": [n], "expected": n + 1} for n in range(4)],
}  # fmt: skip


def turn(step: str, round: int, **other: Any) -> dict[str, Any]:
    return {
        "step": step,
        "round": round,
        "role": step,
        "event": "llm",
        "trainable": True,
        "status": "ok",
        "format_valid": True,
        "parsed": "words",
        "response_text": "words",
        "tool_result": None,
    } | other


def verified(round: int, rate: float | None, verdict: str = "wrong_answer") -> dict[str, Any]:
    result = None if rate is None else {"pass_rate": rate, "verdict": verdict}
    return turn("verify", round, event="tool", trainable=False, parsed=None, tool_result=result)


def rounds(*rates: float | None, code: Any = None) -> list[dict[str, Any]]:
    """Plan, code, verify of each round, with a reflection between rounds; no verdict where a rate is None."""
    turns = []
    for number, rate in enumerate(rates):
        turns += [turn("plan", number), turn("code", number), verified(number, rate)]
        if number + 1 < len(rates):
            turns.append(turn("reflect", number))
    return turns


def episode(turns: list[dict[str, Any]], gold: Any = None, **inputs: Any) -> PlayedEpisode:
    gold = {"private_tests": TESTS} if gold is None else gold
    return PlayedEpisode("t/0", "ok", {"problem": "p", **inputs}, gold, turns)


def by_name(turns: list[dict[str, Any]], values: list[float | None]) -> dict[str, float | None]:
    return {f"{t['step']}{t['round']}": v for t, v in zip(turns, values, strict=True) if t["event"] == "llm"}


def paid(turns: list[dict[str, Any]], reward: PassRateByRound = PUBLIC) -> dict[str, float | None]:
    return by_name(turns, reward(episode(turns)))


# --- the arithmetic -------------------------------------------------------------------------------


def test_gains_add_up_to_the_last_value_whichever_rounds_are_missing() -> None:
    draw = random.Random(5)
    for _ in range(200):
        values = {r: draw.random() for r in range(6) if draw.random() < 0.6}
        first = draw.random()
        added = gains(values, first)
        assert added.keys() == values.keys()
        last = values[max(values)] if values else first
        assert math.isclose(sum(added.values()), last - first, abs_tol=1e-12)


def test_a_look_ahead_needs_both_rounds() -> None:
    values = {0: 0.25, 1: 1.0, 3: 0.5}
    assert [next_gain(values, r) for r in range(-1, 5)] == [0.0, 0.75, 0.0, 0.0, 0.0, 0.0]


def test_planner_and_coder_get_the_gain_of_their_round_and_reflections_that_of_the_next() -> None:
    assert paid(rounds(0.25, 0.75)) == {
        "plan0": 0.25, "code0": 0.25, "reflect0": 0.5, "plan1": 0.5, "code1": 0.5,
    }  # fmt: skip
    assert paid(rounds(1.0)) == {"plan0": 1.0, "code0": 1.0}  # solved at once
    worse = paid(rounds(0.5, 0.25, 0.25))
    assert (worse["plan1"], worse["reflect0"], worse["plan2"], worse["reflect1"]) == (-0.25, -0.25, 0.0, 0.0)
    assert math.copysign(1, worse["reflect1"] or 0.0) == 1


def test_a_reflection_that_no_round_follows_has_gained_nothing() -> None:
    assert paid([*rounds(0.25), turn("reflect", 0)])["reflect0"] == 0.0
    cut_off = [*rounds(0.25), turn("reflect", 0), turn("plan", 1)]
    assert paid(cut_off) == {"plan0": 0.25, "code0": 0.25, "reflect0": 0.0, "plan1": None}


def test_a_round_without_a_value_is_passed_over() -> None:
    assert paid(rounds(0.25, None, 1.0)) == {
        "plan0": 0.25, "code0": 0.25, "reflect0": 0.0, "plan1": None, "code1": None,
        "reflect1": 0.0, "plan2": 0.75, "code2": 0.75,
    }  # fmt: skip


def test_rates_are_kept_between_0_and_1() -> None:
    assert paid(rounds(-0.5, 1.5)) == {
        "plan0": 0.0, "code0": 0.0, "reflect0": 1.0, "plan1": 1.0, "code1": 1.0,
    }  # fmt: skip


def test_final_gives_all_of_them_the_last_rate() -> None:
    values = paid(rounds(0.25, 0.75), PassRateByRound(tests="public", give="final"))
    assert set(values.values()) == {0.75}


def test_only_trained_turns_of_the_three_steps_are_paid() -> None:
    turns = [*rounds(0.5), turn("judge", 0)]
    turns[0]["trainable"] = False
    assert paid(turns) == {"plan0": None, "code0": 0.5, "judge0": None}


def test_steps_may_have_other_names() -> None:
    turns = [turn("draft", 0), turn("write", 0), verified(0, 0.5) | {"step": "run"},
             turn("think", 0)]  # fmt: skip
    reward = PassRateByRound(
        tests="public", plan_step="draft", code_step="write", verify_step="run", reflect_step="think"
    )
    assert paid(turns, reward) == {"draft0": 0.5, "write0": 0.5, "think0": 0.0}


# --- as a reward of a run -------------------------------------------------------------------------


def scored(turns: list[dict[str, Any]], *rewards: WeightedReward, gold: Any = None) -> list[dict[str, Any]]:
    rows = [
        {"episode_id": "t/0", "turn_index": i, **t}
        | {c: None if t[c] is None else json.dumps(t[c]) for c in ("parsed", "tool_result")}
        for i, t in enumerate(turns)
    ]
    gold = {"private_tests": TESTS} if gold is None else gold
    tasks = [{"task_id": "t", "inputs": json.dumps({"problem": "p"}), "gold": json.dumps(gold)}]
    table = score_turns(
        rows_to_table(tasks, TASKS),
        rows_to_table(rows, TURNS),
        rows_to_table([{"episode_id": "t/0", "task_id": "t", "status": "ok"}], EPISODES),
        WeightedRewards(rewards),
    )
    return table.to_pylist()


def test_with_a_format_penalty_of_1_the_known_case_comes_out() -> None:
    turns = rounds(0.25, 0.75)
    turns[1] |= {"format_valid": False, "status": "malformed"}
    rows = scored(turns, WeightedReward("rate", 1.0, PUBLIC), WeightedReward("format", 1.0, Format()))
    assert by_name(turns, [r["reward"] for r in rows]) == {
        "plan0": 0.25, "code0": -0.75, "reflect0": 0.5, "plan1": 0.5, "code1": 0.5,
    }  # fmt: skip
    assert rows[2]["no_reward_reason"] == "not an llm turn"


def test_a_planner_whose_coder_never_ran_has_a_reason_and_no_number() -> None:
    turns = [*rounds(0.25), turn("reflect", 0), turn("plan", 1)]
    rows = scored(turns, WeightedReward("rate", 1.0, PUBLIC))
    assert (rows[-1]["reward"], rows[-1]["no_reward_reason"]) == (None, NO_VALUES)
    assert rows[0]["reward"] == 0.25


def test_nothing_verified_is_no_zero() -> None:
    for turns in (
        [turn("plan", 0), turn("code", 0)],
        rounds(None),
        [turn("plan", 0), turn("code", 0), verified(0, 0.0, "not_graded")],
    ):
        rows = scored(turns, WeightedReward("rate", 1.0, PUBLIC))
        assert {kind_of(r["no_reward_reason"]) for r in rows} == {"reward 'rate' failed"}
        assert "has a pass rate" in rows[0]["no_reward_reason"]


def test_two_programs_in_one_round_are_refused_not_guessed_at() -> None:
    turns = [*rounds(0.5), turn("code", 0)]
    for reward in (PUBLIC, PRIVATE):
        with pytest.raises(ValueError, match="twice in round 0"):
            reward(episode([*turns, verified(0, 0.5)] if reward is PUBLIC else turns))


# --- private tests --------------------------------------------------------------------------------


def coded(*replies: dict[str, Any]) -> list[dict[str, Any]]:
    """Rounds whose verifier, on other tests, found everything passed."""
    turns = rounds(*[1.0] * len(replies))
    for reply, at in zip(replies, [t for t in turns if t["step"] == "code"], strict=True):
        at |= reply
    return turns


def test_the_rate_is_that_of_the_private_tests_whatever_the_public_ones_gave() -> None:
    turns = coded({"response_text": code_of(1)}, {"response_text": code_of(3)})
    assert paid(turns, PRIVATE) == {
        "plan0": 0.25, "code0": 0.25, "reflect0": 0.5, "plan1": 0.5, "code1": 0.5,
    }  # fmt: skip


def test_a_reply_without_code_has_passed_nothing() -> None:
    silent = {"parsed": None, "response_text": "", "format_valid": False, "status": "malformed"}
    words = {"response_text": "I can not do that.", "format_valid": False, "status": "malformed"}
    assert set(paid(coded(silent, words), PRIVATE).values()) == {0.0}
    fenced = {
        "response_text": f"So:\n```python\n{code_of(4)}\n```",
        "format_valid": False,
        "status": "malformed",
    }
    assert paid(coded(fenced), PRIVATE)["code0"] == 1.0


@pytest.mark.parametrize("gold", [{}, {"private_tests": None}, {"private_tests": {**TESTS, "cases": []}}])
def test_a_task_without_private_tests_is_no_zero(gold: dict[str, Any]) -> None:
    rows = scored(
        coded({"response_text": code_of(4)}), WeightedReward("rate", 1.0, PRIVATE), gold=gold or {"x": 1}
    )
    assert {kind_of(r["no_reward_reason"]) for r in rows} == {"reward 'rate' failed"}
    assert "private" in rows[0]["no_reward_reason"]


def test_a_judge_that_fails_excludes_the_episode_and_names_the_cause(monkeypatch) -> None:
    class Broken:
        def grade(self, code: str | None, tests: CodeTests) -> Report:
            return Report("infra_error", total=4, reason="the sandbox did not start")

    monkeypatch.setattr(pass_rate_by_round, "_judge", lambda sandbox, limits: Broken())
    rows = scored(coded({"response_text": "print('never run')"}), WeightedReward("rate", 1.0, PRIVATE))
    assert {r["reward"] for r in rows} == {None}
    assert {kind_of(r["no_reward_reason"]) for r in rows} == {"reward 'rate' failed"}
    assert "the code sandbox failed: the sandbox did not start" in rows[0]["no_reward_reason"]


def test_each_program_is_run_once_however_often_it_is_written(monkeypatch) -> None:
    class Counts:
        def __init__(self) -> None:
            self.programs: list[str | None] = []

        def grade(self, code: str | None, tests: CodeTests) -> Report:
            self.programs.append(code)
            return Report("wrong_answer", passed=1, total=4)

    counts = Counts()
    monkeypatch.setattr(pass_rate_by_round, "_judge", lambda sandbox, limits: counts)
    again = {"response_text": "<code>print('written twice')</code>"}
    turns = coded(again, again, {"response_text": "x = 'once'"}, again)
    values = paid(turns, PRIVATE)
    assert [values[f"code{r}"] for r in range(4)] == [0.25, 0.0, 0.0, 0.0]
    final = PassRateByRound(sandbox="none", give="final")
    assert set(paid(turns, final).values()) == {0.25}
    assert [(code or "").strip() for code in counts.programs] == ["print('written twice')", "x = 'once'"]


def test_what_was_played_is_paid_by_tests_that_nobody_saw() -> None:
    """The built-in workflow with the real judge, and its rows through this reward."""
    secret = [{"args": [n], "expected": n + 1} for n in (-7654321, 7654321, 0, 5)]
    inputs = {
        "problem": "Add one.",
        "fn_name": "more",
        "public_tests": {**TESTS, "cases": TESTS["cases"][:2]},
    }
    first, second = (f"<code>\n{code_of(n)}\n</code>" for n in (1, 4))  # passes 1 of 2, then 2 of 2
    replies = {
        "planner": "<pseudocode>p</pseudocode>",
        "coder": lambda messages, _: second if "round 1" in messages[-1]["content"] else first,
        "reflector": "<reflection>r</reflection>",
    }
    played = play_once(build(sandbox="none"), inputs, replies)
    assert [t["step"] for t in played.turns if t["event"] != "control"] == [
        "plan", "code", "verify", "reflect", "plan", "code", "verify",
    ]  # fmt: skip
    task = {"task_id": "task", "inputs": json.dumps(inputs)}
    task["gold"] = json.dumps({"private_tests": {**TESTS, "cases": secret}})
    tables = [rows_to_table([task], TASKS), rows_to_table(played.turns, TURNS)]
    tables.append(rows_to_table([played.episode], EPISODES))
    by_tests = {}
    for tests in ("private", "public"):
        reward = WeightedRewards((WeightedReward("r", 1.0, PassRateByRound(tests=tests, sandbox="none")),))
        rows = score_turns(*tables, reward).to_pylist()
        by_tests[tests] = [r["reward"] for r in rows if r["reward"] is not None]
    assert by_tests["public"] == [0.5, 0.5, 0.5, 0.5, 0.5]
    assert by_tests["private"] == [0.5, 0.5, 0.0, 0.0, 0.0]  # n < 1 and n < 4 are both right twice
    assert "7654321" not in json.dumps([played.turns, played.episode], default=str)


def test_an_episode_without_any_code_runs_nothing() -> None:
    assert paid([turn("plan", 0)], PRIVATE) == {"plan0": None}


def test_the_tasks_time_limit_holds() -> None:
    slow = {"response_text": "def more(n):\n    while True:\n        pass"}
    turns = coded(slow)
    one = {**TESTS, "cases": TESTS["cases"][:1]}
    values = PRIVATE(episode(turns, {"private_tests": one}, time_limit_seconds=0.2))
    assert by_name(turns, values) == {"plan0": 0.0, "code0": 0.0}


@pytest.mark.parametrize(("options", "what"), [
    ({"tests": "hidden"}, "tests"), ({"give": "all"}, "give"), ({"test": "public"}, "did you mean 'tests'"),
    ({"limits": {"seconds": 1}}, "seconds"), ({"sandbox": "docker"}, "sandbox"),
])  # fmt: skip
def test_options_that_can_not_work_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        load_reward("pass_rate_by_round", options)


def test_it_is_a_built_in_that_travels() -> None:
    reward = pickle.loads(pickle.dumps(load_reward("pass_rate_by_round", {"tests": "public"})))
    assert reward == PUBLIC
