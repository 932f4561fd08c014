"""`voting`, `evaluate_optimise`, `orchestrate_workers` and their control: who is asked what, and when."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from workflows.draw import mermaid, text_lines
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.teams.evaluate_optimise import NO_FEEDBACK
from workflows.teams.kinds import KINDS, NO_ANSWER
from workflows.teams.orchestrate_workers import ANY_WAY, Strategies
from workflows.testing import play_once

TASKS: dict[str, dict[str, Any]] = {
    "questions": {"question": "What is the capital of France?"},
    "reading": {"statements": ["Ana keeps the pens in the attic."], "question": "Where are the pens?"},
    "mathematics": {"problem": "What is 2 + 2?"},
    "code": {
        "problem": "Return n.",
        "fn_name": "same",
        "public_tests": {"kind": "call", "fn_name": "same", "cases": [{"args": [3], "expected": 3}]},
    },
}
TEAMS: list[tuple[str, dict[str, Any]]] = [
    ("single", {}),
    ("voting", {"voters": 3}),
    ("voting", {"voters": ["voter_a", "voter_b"]}),
    ("evaluate_optimise", {"max_rounds": 3}),
    ("evaluate_optimise", {"max_rounds": 3, "conversations": True}),
    ("orchestrate_workers", {"max_strategies": 2}),
    ("orchestrate_workers", {"max_strategies": 2, "parallel": False}),
]


def prompts(played: Any, step: str) -> list[str]:
    return [json.loads(t["messages"])[-1]["content"] for t in played.turns if t["step"] == step]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("use", "options"), TEAMS, ids=lambda value: str(value))
@pytest.mark.parametrize("says", ["", "nonsense", "<answer></answer>", "random"])
def test_no_reply_breaks_a_team_and_no_role_is_asked_about_blanks(
    use: str, options: dict[str, Any], task: str, says: str
) -> None:
    def reply(messages: Any, sampling: Any) -> str:
        if says != "random":
            return says
        luck = random.Random(sampling.seed)
        pieces = ["<answer>", "</answer>", "<verdict>satisfied</verdict>", "<strategy>", "</strategy>", "x"]
        return "".join(luck.choices(pieces, k=8))

    workflow = load_workflow(use, {**options, "task": task})
    for sample in range(3 if says == "random" else 1):
        played = play_once(workflow, TASKS[task], reply, sample=sample)
        assert played.episode["status"] == "ok", played.episode["error"]
        for turn in played.turns:
            if turn["event"] != "llm":
                continue
            last = json.loads(turn["messages"])[-1]["content"]
            lines = last.split("Reply:")[0].replace("Tests:\n", "").replace("answers:\n", "").splitlines()
            assert all(line.strip() and not line.rstrip().endswith(":") for line in lines), last
            # the form of the reply ends the prompt
            form = last.rsplit("Reply: ", 1)[1]
            assert form.startswith("<")
            assert form.rstrip().endswith(">")
    assert text_lines(workflow)
    assert mermaid(workflow).startswith("flowchart")


def test_voters_are_copies_in_branches_or_roles_of_their_own() -> None:
    copies = play_once(
        load_workflow("voting", {}), TASKS["questions"], lambda m, s: f"<answer>{s.seed}</answer>"
    )
    assert [(t["step"], t["branch"]) for t in copies.turns] == [
        *[("generate", "0"), ("generate", "1"), ("generate", "2")],
        ("aggregate", ""),
    ]
    assert copies.turns[-1]["parents"] == [0, 1, 2]
    answers = [json.loads(t["parsed"]) for t in copies.turns[:3]]
    assert len(set(answers)) == 3
    (seen,) = prompts(copies, "aggregate")
    assert [seen.count(f"Answer {n}: {a}") for n, a in enumerate(answers, 1)] == [1, 1, 1]
    named = load_workflow("voting", {"voters": ["voter_a", "voter_b"]})
    assert list(named.roles) == ["voter_a", "voter_b", "aggregator"]
    turns = play_once(named, TASKS["questions"], lambda m, s: "<answer>x</answer>").turns
    assert [t["role"] for t in turns] == ["voter_a", "voter_b", "aggregator"]


@pytest.mark.parametrize("conversations", [False, True])
def test_drafts_are_judged_until_the_evaluator_is_satisfied(conversations: bool) -> None:
    def judge(messages: Any, sampling: Any) -> str:
        verdict = "satisfied" if "draft 1" in messages[-1]["content"] else "unsatisfied"
        return f"<verdict>{verdict}</verdict><confidence>low</confidence><feedback>more care</feedback>"

    def draft(messages: Any, sampling: Any) -> str:
        again = "more care" in messages[-1]["content"]
        return f"<answer>draft {int(again)}</answer>"

    workflow = load_workflow("evaluate_optimise", {"conversations": conversations})
    played = play_once(workflow, TASKS["questions"], {"generator": draft, "evaluator": judge})
    assert [t["step"] for t in played.turns] == ["generate", "evaluate", "generate", "evaluate"]
    assert played.episode["stop_reason"] == "finished"
    again = [t for t in played.turns if t["role"] == "generator"][1]
    chat = [m["role"] for m in json.loads(again["messages"])]
    if conversations:
        assert chat == ["user", "assistant"] * 2 + ["user"]  # a demonstration, the draft, the feedback
        assert again["conversation_turn"] == 1
    else:
        assert "Last answer: draft 0" in prompts(played, "generate")[1]
        assert again["conversation"] is None


def test_an_unreadable_verdict_asks_for_another_draft_and_its_text_is_the_feedback() -> None:
    workflow = load_workflow("evaluate_optimise", {"max_rounds": 2})
    said = {"generator": "<answer>a</answer>", "evaluator": "I am not sure"}
    played = play_once(workflow, TASKS["questions"], said)
    assert played.episode["stop_reason"] == "loop_limit"
    assert "Feedback: I am not sure" in prompts(played, "generate")[1]
    silent = play_once(workflow, TASKS["questions"], {"generator": "", "evaluator": ""})
    assert f"Last answer: {NO_ANSWER}\nFeedback: {NO_FEEDBACK}" in prompts(silent, "generate")[1]


THREE = "<strategy>a</strategy><strategy>b</strategy><strategy>c</strategy>"


@pytest.mark.parametrize("parallel", [True, False])
def test_a_worker_solves_the_task_by_each_strategy(parallel: bool) -> None:
    workflow = load_workflow("orchestrate_workers", {"parallel": parallel})

    def work(messages: Any, sampling: Any) -> str:
        way = re.search(r"this way: (.)", messages[-1]["content"])
        return f"<answer>by {way[1] if way else '?'}</answer>"

    said = {"orchestrator": THREE, "worker": work, "synthesizer": "<answer>by b</answer>"}
    played = play_once(workflow, TASKS["questions"], said)
    work_turns = [t for t in played.turns if t["step"] == "work"]
    assert [t["branch"] for t in work_turns] == ["0", "1", "2"]
    assert all(0 in t["parents"] for t in work_turns)
    (seen,) = prompts(played, "synthesize")
    assert "Answer 1: by a\nAnswer 2: by b\nAnswer 3: by c" in seen
    later = prompts(played, "work")[2]
    assert ("Answer 2: by b" in later) == (not parallel)


def test_too_many_strategies_end_the_episode_or_are_cut_and_are_counted() -> None:
    said = {"orchestrator": THREE, "worker": "<answer>x</answer>", "synthesizer": "<answer>x</answer>"}
    ended = play_once(load_workflow("orchestrate_workers", {"max_strategies": 2}), TASKS["questions"], said)
    assert [t["step"] for t in ended.turns] == ["orchestrate", "too_many"]
    assert ended.turns[0]["status"] == "malformed"
    assert ended.turns[1]["parsed"] == "3"
    assert ended.episode["status"] == "ok"
    cut = load_workflow("orchestrate_workers", {"max_strategies": 2, "excess": "cut"})
    steps = [t["step"] for t in play_once(cut, TASKS["questions"], said).turns]
    assert steps.count("work") == 2
    assert steps[-1] == "synthesize"


def test_a_reply_without_strategies_is_one_and_an_empty_one_stands_for_any_way() -> None:
    workflow = load_workflow("orchestrate_workers", {})
    said = {"orchestrator": "by hand", "worker": "<answer>x</answer>", "synthesizer": "<answer>x</answer>"}
    assert "this way: by hand" in prompts(play_once(workflow, TASKS["questions"], said), "work")[0]
    silent = play_once(workflow, TASKS["questions"], said | {"orchestrator": ""})
    assert f"this way: {ANY_WAY}" in prompts(silent, "work")[0]
    assert Strategies(2).parse("<strategy> a </strategy><strategy></strategy>").value == ["a"]


def test_the_control_asks_what_each_branch_is_asked() -> None:
    for task in KINDS:
        (alone,) = play_once(load_workflow("single", {"task": task}), TASKS[task], lambda m, s: "x").turns
        voting = play_once(load_workflow("voting", {"task": task}), TASKS[task], lambda m, s: "x").turns
        assert alone["messages"] == voting[0]["messages"]


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("voting", {"task": "maths"}, "option task is 'maths'.*mathematics"),
        ("voting", {"voters": 1}, "option voters must be a whole number of at least 2, got 1"),
        ("voting", {"voters": ["a"]}, "at least two roles' names"),
        ("voting", {"voters": ["a", "aggregator"]}, "'aggregator', which is taken"),
        ("voting", {"voters": True}, "voters must be a whole number"),
        ("evaluate_optimise", {"max_rounds": 0}, "max_rounds must be a whole number of at least 1"),
        ("evaluate_optimise", {"conversations": "yes"}, "conversations"),
        ("orchestrate_workers", {"excess": "stop"}, "option excess is 'stop'; use one of end, cut"),
        ("single", {"task": "code", "prompt": "{problem}"}, "option task decides prompt"),
    ],
)
def test_options_that_mean_nothing_are_refused(use: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_workflow(use, options)


def test_a_task_of_another_kind_says_what_to_do() -> None:
    workflow = load_workflow("orchestrate_workers", {"task": "mathematics"})
    played = play_once(workflow, TASKS["questions"], lambda m, s: "x")
    assert "no field 'problem'; it has: question" in played.episode["error"]


@pytest.mark.parametrize(("use", "options"), TEAMS, ids=lambda value: str(value))
def test_thoughts_are_shown_to_nobody_else_and_are_no_answer(use: str, options: dict[str, Any]) -> None:
    thought = "<think>SECRET <answer>no</answer></think>"
    said = "<answer>yes</answer><verdict>satisfied</verdict><strategy>way</strategy>"
    workflow = load_workflow(use, {**options, "task": "questions", "reasoning": True})
    played = play_once(workflow, TASKS["questions"], lambda m, s: thought + said)
    assert played.episode["status"] == "ok"
    for turn in played.turns:
        assert "SECRET" not in json.loads(turn["messages"])[-1]["content"]
        assert json.loads(turn["parsed"]) != "no"
    assert json.loads(played.turns[-1]["parsed"]) is not None
    unended = play_once(workflow, TASKS["questions"], lambda m, s: "<think>SECRET")
    assert unended.episode["status"] == "ok"
    for turn in unended.turns:
        assert "SECRET" not in json.loads(turn["messages"])[-1]["content"]
