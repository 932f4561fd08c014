"""The built-in workflow `code`: its rounds, what each role is told, and what nobody is ever told."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import pytest

from workflows.echo import echo_form
from workflows.engine import Message, Sampling
from workflows.errors import InfraError, ToolRefusal, UsageError
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.teams.code import build
from workflows.teams.code_text import cut_middle
from workflows.testing import ScriptedEngine, play_once
from workflows.trajectory import MALFORMED, OK

CASES = [{"args": [n], "expected": n + 1} for n in range(4)]
CALL = {
    "problem": "Add one to the number.",
    "fn_name": "more",
    "starter_code": "def more(n):",
    "public_tests": {"kind": "call", "fn_name": "more", "cases": CASES, "checker": "standard", "setup": ""},
}
STDIO = {
    "problem": "Read a number, print it plus one.",
    "fn_name": None,
    "starter_code": "",
    "public_tests": {
        "kind": "stdio", "fn_name": None, "checker": "standard", "setup": "",
        "cases": [{"input": "1\n", "output": "2\n"}, {"input": "7\n", "output": "8\n"}],
    },
}  # fmt: skip


class Marks:
    """A verifier that believes the code: `# 2` passes the first two cases, no mark is no code."""

    def __init__(self, fails: Exception | None = None):
        self.fails = fails
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        if self.fails is not None:
            raise self.fails
        total, mark = len(request["tests"]["cases"]), re.search(r"# (\d)", request["code"])
        passed = min(int(mark[1]), total) if mark else 0
        verdict = "passed" if passed == total else "wrong_answer" if mark else "no_code"
        cases = [{"verdict": "passed", "detail": ""}] * passed
        cases += [{"verdict": verdict, "detail": f"got {i}"} for i in range(passed, total)]
        return {"verdict": verdict, "passed": passed, "total": total, "pass_rate": passed / total,
                "all_passed": passed == total, "cases": cases, "skipped": 0, "reason": None}  # fmt: skip


def by_round(*said: str) -> Callable[[Sequence[Message], Sampling], str]:
    """The reply of each round, told from the prompt; the last one again where they run out."""

    def reply(messages: Sequence[Message], sampling: Sampling) -> str:
        number = re.findall(r"^Round (\d+) of", messages[-1]["content"], re.MULTILINE)[-1]
        return said[min(int(number), len(said)) - 1]

    return reply


def coded(*passed: int) -> tuple[str, ...]:
    return tuple(f"<code>more = 0  # {n}</code>" for n in passed)


def play(
    *code: str, task: dict[str, Any] = CALL, verifier: Any = None, settings: Any = None, **options: Any
) -> Played:
    said: dict[str, Any] = {
        "planner": by_round("<pseudocode>plan A</pseudocode>", "<pseudocode>plan B</pseudocode>"),
        "coder": by_round(*code),
        "reflector": by_round("<reflection>think A</reflection>", "<reflection>think B</reflection>"),
    }
    said |= options.pop("said", {})
    limits = options.pop("limits_of_play", None)
    workflow = build(**options)
    return play_once(
        workflow, task, {r: said[r] for r in workflow.roles}, tools={"verifier": verifier or Marks()},
        role_settings=settings, limits=limits,
    )  # fmt: skip


def spoken(played: Played) -> list[str]:
    """Steps and rounds, without the notes."""
    return [f"{t['step']}{t['round']}" for t in played.turns if t["event"] != "control"]


def prompts(played: Played, step: str) -> list[str]:
    return [json.loads(t["messages"])[-1]["content"] for t in played.turns if t["step"] == step]


# --- rounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "expected"), [
    ([4], ["plan0", "code0", "verify0"]),
    ([1, 4], ["plan0", "code0", "verify0", "reflect0", "plan1", "code1", "verify1"]),
    ([1, 2, 3], ["plan0", "code0", "verify0", "reflect0", "plan1", "code1", "verify1", "reflect1",
                 "plan2", "code2", "verify2"]),
])  # fmt: skip
def test_rounds_end_when_all_public_tests_pass_or_with_the_last_one(
    passed: list[int], expected: list[str]
) -> None:
    played = play(*coded(*passed))
    assert spoken(played) == expected
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_nobody_reflects_after_the_last_round(rounds: int) -> None:
    steps = spoken(play(*coded(0), max_rounds=rounds))
    assert steps.count(f"code{rounds - 1}") == 1
    assert steps[-1] == f"verify{rounds - 1}"
    assert sum(s.startswith("reflect") for s in steps) == rounds - 1


def test_all_rounds_are_played_where_success_is_no_reason_to_stop() -> None:
    assert spoken(play(*coded(4), stop_on_all_passed=False))[-1] == "verify2"


def test_a_limit_of_turns_ends_the_episode_with_that_reason() -> None:
    played = play(*coded(0), limits_of_play=PlayLimits(max_turns=6))
    assert spoken(played) == ["plan0", "code0", "verify0", "reflect0", "plan1"]
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")


@pytest.mark.parametrize("tests", [None, {}, {"kind": "call", "fn_name": "more", "cases": []}, "absent"])
def test_without_public_tests_nothing_is_verified_and_that_is_no_pass(tests: Any) -> None:
    task = {**CALL, "public_tests": tests}
    if tests == "absent":
        del task["public_tests"]
    played = play(*coded(4), task=task)
    assert spoken(played) == ["plan0", "code0"]
    assert "passed" not in json.dumps([t["parsed"] for t in played.turns])
    more = play(*coded(4), task=task, reflect_without_tests=True, max_rounds=2)
    assert spoken(more) == ["plan0", "code0", "reflect0", "plan1", "code1"]
    assert "Result: no public tests, so nothing was run" in prompts(more, "reflect")[0]


# --- what is told -------------------------------------------------------------------------------


def test_planner_and_coder_know_the_problem_the_name_the_tests_and_the_round() -> None:
    played = play(*coded(1, 2, 3))
    for step in ("plan", "code"):
        for number, prompt in enumerate(prompts(played, step)):
            assert CALL["problem"] in prompt
            assert "Write the Python function more." in prompt
            assert "more(0) → 1\nmore(1) → 2\nmore(2) → 3\n" in prompt
            assert "more(3)" not in prompt.split("Earlier rounds")[0]  # three are shown, four are run
            assert f"Round {number + 1} of 3." in prompt
    assert all("Start from:\ndef more(n):" in p for p in prompts(played, "code"))
    assert "Start from" not in prompts(played, "plan")[0]
    assert "Start from" not in prompts(play(*coded(4), starter_code=False), "code")[0]
    assert [p.count("plan A") for p in prompts(played, "code")] == [1, 1, 1]  # later: as history
    assert "Plan: plan B\n" in prompts(played, "code")[1]


def test_a_program_is_told_from_a_function() -> None:
    prompt = prompts(play(*coded(2), task=STDIO), "code")[0]
    assert "standard input" in prompt
    assert "function" not in prompt
    assert "Input:\n1\nOutput:\n2\nInput:\n7\nOutput:\n8\n" in prompt
    assert "Start from" not in prompt


def test_values_are_written_as_python_writes_them() -> None:
    cases = [{"args": [None, [True, "a'b"]], "expected": {"k": 1.5}}]
    task = {**CALL, "public_tests": {**CALL["public_tests"], "cases": cases}}
    assert """more(None, [True, "a'b"]) → {'k': 1.5}""" in prompts(play(*coded(1), task=task), "plan")[0]
    asserted = {"kind": "assert", "fn_name": "more", "cases": [{"code": "assert more(1) == 2"}]}
    played = play(*coded(0, 1), task={**CALL, "public_tests": asserted})
    assert "Tests:\nassert more(1) == 2\n" in prompts(played, "plan")[0]
    assert "an error" not in prompts(played, "reflect")[0]
    assert "wrong answer:\nTest: assert more(1) == 2\nJudge: got 0" in prompts(played, "reflect")[0]


def test_the_reflection_is_on_the_first_public_case_that_failed() -> None:
    played = play(*coded(2, 4))
    assert (
        "Result: 2 of 4 public tests passed. First failure, wrong answer:\n"
        "Input: more(2)\nExpected: 3\nJudge: got 2\n"
    ) in prompts(played, "reflect")[0]
    assert "Plan: plan A\nCode:\nmore = 0  # 2\n" in prompts(played, "reflect")[0]


def test_history_has_every_part_of_every_earlier_round_in_order() -> None:
    played = play(*coded(1, 2, 3))
    assert all("Earlier rounds:\nnone\n" in prompts(played, step)[0] for step in ("plan", "code", "reflect"))
    for prompt in (prompts(played, "plan")[2], prompts(played, "code")[2]):
        parts = ["Plan of round 1: plan A", "Code of round 1:", "Result of round 1: 1 of 4",
                 "Reflection on round 1: think A", "Plan of round 2: plan B", "Code of round 2:",
                 "Result of round 2: 2 of 4", "Reflection on round 2: think B"]  # fmt: skip
        assert [prompt.count(p) for p in parts] == [1] * 8
        assert sorted(parts, key=prompt.index) == parts
    second = prompts(played, "reflect")[1]
    assert "Reflection on round 1: think A" in second
    assert "of round 2" not in second  # that is what it is asked about


def test_a_long_history_loses_the_oldest_parts_whole_and_never_the_problem_or_the_form() -> None:
    played = play(*coded(1, 2, 3), settings={"planner": RoleSettings(max_prompt_tokens=450)})
    turn = next(t for t in played.turns if t["step"] == "plan" and t["round"] == 2)
    lost = json.loads(turn["cut"])["history"]["items"]
    assert 0 < lost < 8
    prompt = prompts(played, "plan")[2]
    assert "Reflection on round 2: think B" in prompt
    assert "Plan of round 1" not in prompt
    assert CALL["problem"] in prompt
    assert prompt.endswith("</pseudocode>")
    assert "more(0) → 1" in prompt  # tests go after all of the history


def test_long_inputs_lose_their_middle_and_say_how_much() -> None:
    cases = [{"input": "b" * 50 + "m" * 5000 + "e" * 50, "output": "1" * 3000}]
    task = {**STDIO, "public_tests": {**STDIO["public_tests"], "cases": cases}}
    played = play(*coded(0, 1), task=task, max_case_characters=100)
    for prompt in (prompts(played, "plan")[0], prompts(played, "reflect")[0]):
        assert "b" * 50 + " …[5000 characters cut]… " + "e" * 50 in prompt
        assert "…[2900 characters cut]…" in prompt
        assert len(prompt) < 1000


@pytest.mark.parametrize("limit", [20, 21, 99])
def test_what_is_cut_plus_what_is_left_is_the_text(limit: int) -> None:
    text = "".join(chr(33 + i % 90) for i in range(99))
    kept = re.split(r" …\[\d+ characters cut\]… ", cut_middle(text, limit))
    assert sum(map(len, kept)) == limit
    assert text.startswith(kept[0])
    assert text.endswith(kept[-1])


# --- replies and verdicts that are not as they should be -----------------------------------------


@pytest.mark.parametrize(("role", "reply", "reads_as"), [
    ("planner", "just words", "just words"),
    ("planner", "<pseudocode>x</pseudocode> and <pseudocode>y</pseudocode>", "x"),
    ("planner", "Sure: <PSEUDOCODE>x</PSEUDOCODE>", "x"),
    ("coder", "Here: <code>a  # 1</code>", "a  # 1"),
    ("coder", "```python\na  # 1\n```", "```python\na  # 1\n```"),
    ("coder", "<code>a  # 1", "<code>a  # 1"),
    ("reflector", "<reflection></reflection> hm", "<reflection></reflection> hm"),
])  # fmt: skip
def test_a_malformed_reply_is_marked_and_used_as_it_can_be_read(role: str, reply: str, reads_as: str) -> None:
    verifier = Marks()
    played = play(*coded(1, 4), verifier=verifier, said={role: reply}, max_rounds=2)
    first = next(t for t in played.turns if t["role"] == role)
    assert (first["status"], json.loads(first["parsed"])) == (MALFORMED, reads_as)
    assert played.episode["status"] == "ok"
    assert "round 1" in prompts(played, "plan")[1]
    assert reads_as in prompts(played, "plan")[1]
    if role == "coder":
        assert verifier.requests[0]["code"] == reply  # in which the judge looks for code by itself


def test_no_code_is_a_result_and_the_next_round_hears_it() -> None:
    played = play("I can't.", coded(4)[0])
    verified = [json.loads(t["tool_result"]) for t in played.turns if t["event"] == "tool"]
    assert [(v["verdict"], v["pass_rate"]) for v in verified] == [("no_code", 0.0), ("passed", 1.0)]
    assert "0 of 4 public tests passed: no code in the reply" in prompts(played, "reflect")[0]


def test_an_empty_reply_is_named_not_left_blank() -> None:
    played = play(" ", coded(4)[0], said={"planner": " "})
    assert "Plan: (no reply)\nCode:\n(no reply)\n" in prompts(played, "reflect")[0]


def test_a_refused_reply_is_the_coders_doing_and_the_next_round_goes_on() -> None:
    played = play(*coded(1), verifier=Marks(ToolRefusal("too large")), max_rounds=2)
    assert [t["status"] for t in played.turns if t["event"] == "tool"] == ["tool_error"] * 2
    assert played.episode["status"] == "ok"
    assert "Result: the reply could not be run" in prompts(played, "reflect")[0]


def test_a_judge_that_fails_is_not_the_policys_doing() -> None:
    limits = PlayLimits(backoff_seconds=0.0)
    played = play(*coded(1), verifier=Marks(InfraError("no sandbox")), limits_of_play=limits)
    assert [t["status"] for t in played.turns if t["event"] == "tool"] == ["infra_error"]
    assert [t["attempts"] for t in played.turns if t["event"] == "tool"] == [3]
    assert played.episode["status"] == "infra_error"
    assert spoken(played) == ["plan0", "code0", "verify0"]


def test_thoughts_are_neither_code_nor_history() -> None:
    thoughts = "<code># 4</code> or so</think>"
    verifier = Marks()
    played = play(*(thoughts + c for c in coded(1, 4)), verifier=verifier, reasoning=True)
    assert [t["status"] for t in played.turns] == [OK] * len(played.turns)
    assert [r["code"] for r in verifier.requests] == list(coded(1, 4))
    assert all("or so" not in (t["messages"] or "") for t in played.turns)


# --- the frame ----------------------------------------------------------------------------------


def test_the_verifier_gets_the_code_the_public_tests_and_the_tasks_time_limit() -> None:
    verifier = Marks()
    play(*coded(4), verifier=verifier)
    asked = {"code": coded(4)[0], "tests": CALL["public_tests"], "fn_name": "more"}
    assert verifier.requests == [asked]
    verifier = Marks()
    play(*coded(4), verifier=verifier, task={**CALL, "time_limit_seconds": 2.5})
    assert verifier.requests[0]["time_limit_seconds"] == 2.5


@pytest.mark.parametrize(
    "groups", [["all"] * 3, ["think", "code", "think"], ["planner", "coder", "reflector"]]
)
def test_who_speaks_with_which_weights_changes_no_word(groups: list[str]) -> None:
    workflow = build(max_rounds=2).with_tools({"verifier": Marks()})
    of_role = dict(zip(workflow.roles, groups, strict=True))
    engines = {m: ScriptedEngine(echo_form, model_id=m) for m in of_role.values()}
    models = ModelMap({m: Model(m, m, "scripted") for m in engines}, of_role)
    player = Player(workflow, engines, models, {}, PlayLimits(), run_seed=3)
    task = {"task_id": "task", "split": "train", "inputs": CALL}
    played = asyncio.run(player.play(task, iteration=0, sample=0))
    assert {t["role"]: t["model_id"] for t in played.turns if t["event"] == "llm"} == of_role
    alone = play_once(workflow, CALL, echo_form, seed=3)
    for mine, other in zip(played.turns, alone.turns, strict=True):
        for column in ("step", "round", "messages", "response_token_ids", "parsed", "tool_result", "status"):
            assert mine[column] == other[column]


def test_the_scripted_replies_give_a_group_something_to_learn_from() -> None:
    statuses: Counter[str] = Counter()
    for sample in range(12):
        played = play_once(build(), CALL, echo_form, tools={"verifier": Marks()}, sample=sample)
        assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
        statuses.update(t["status"] for t in played.turns if t["event"] == "llm")
    assert set(statuses) == {OK, MALFORMED}


def test_it_is_a_built_in_that_travels() -> None:
    workflow = cloudpickle.loads(cloudpickle.dumps(load_workflow("code", {"max_rounds": 2})))
    assert workflow.answer_step == "code"
    assert set(workflow.roles) == {"planner", "coder", "reflector"}
    assert set(load_workflow("code", {"max_rounds": 1}).roles) == {"planner", "coder"}


@pytest.mark.parametrize("options", [
    {"max_rounds": 0}, {"max_rounds": True}, {"visible_tests": -1}, {"max_case_characters": 3},
    {"stop_on_all_passed": "no"}, {"reflect_without_tests": 1}, {"starter_code": 0}, {"reasoning": "x"},
    {"sandbox": "docker"}, {"limits": {"seconds": 1}}, {"rounds": 2},
])  # fmt: skip
def test_options_of_the_wrong_kind_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(options))[:5]}"):
        load_workflow("code", options)
