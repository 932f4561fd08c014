"""What all built-in question-answering workflows keep to, and options that they refuse."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import cloudpickle
import pytest

from tests.support.qa_plays import QUESTION, play, workflow_of
from workflows.errors import UsageError, WorkflowError
from workflows.loading import load_workflow
from workflows.prompts import Trim
from workflows.teams.single import build as single
from workflows.testing import ScriptedModel, play_once
from workflows.trajectory import MALFORMED, OK

FAMILY = ("single", "qa_decompose", "qa_rewrite", "qa_summarise", "qa_select", "mask")


@pytest.mark.parametrize("use", FAMILY)
def test_every_workflow_plays_to_an_answer_whatever_its_roles_say(use: str) -> None:
    workflow = cloudpickle.loads(cloudpickle.dumps(workflow_of(use)))
    statuses: Counter[str] = Counter()
    for sample in range(12):
        played = play_once(workflow, {"question": "What is the capital of Chad?"}, sample=sample)
        assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
        assert [t for t in played.turns if t["event"] == "llm"][-1]["step"] in (
            workflow.answer_step,
            "search",
        )
        statuses.update(t["status"] for t in played.turns if t["event"] == "llm")
    assert set(statuses) == {OK, MALFORMED}  # the scripted model gives a group something to learn from


@pytest.mark.parametrize("use", FAMILY)
@pytest.mark.parametrize("said", ["", " \n", "x", "<", "<answer>", "{}", "<end>", "{" * 99])
def test_no_role_is_asked_about_nothing_when_all_of_them_talk_nonsense(use: str, said: str) -> None:
    workflow = workflow_of(use)
    played = play_once(workflow, {"question": QUESTION}, lambda messages, sampling: said)
    assert played.episode["status"] == "ok"
    for turn in played.turns:
        if turn["event"] == "tool":
            assert json.loads(turn["tool_request"])["query"].strip()
        if turn["event"] == "llm":
            for line in json.loads(turn["messages"])[-1]["content"].splitlines():
                assert line.strip()
                assert not line.endswith((": ", "- "))  # a label or a step with nothing behind it


@pytest.mark.parametrize("use", FAMILY)
def test_every_prompt_has_the_question_and_ends_with_its_form(use: str) -> None:
    played = play_once(workflow_of(use), {"question": QUESTION})
    for turn in played.turns:
        if turn["event"] == "llm":
            prompt = json.loads(turn["messages"])[-1]["content"]
            assert QUESTION in prompt
            assert "\nReply: " in prompt[prompt.index(QUESTION) :]  # last, where small models see it best


@pytest.mark.parametrize("use", FAMILY)
def test_every_role_is_shown_its_format_and_loses_lists_only(use: str) -> None:
    workflow = workflow_of(use)
    for role in workflow.roles.values():
        assert 1 <= len(role.demonstrations) <= 3
        assert len(role.prompt) < 250  # small models: the room belongs to the passages
        for trim in role.trims:
            assert trim.by == "item"
            assert trim.variable in ("passages", "notes", "facts", "summary", "trajectory", "queries")
        assert Trim("question") not in role.trims


# One role, one call.


def test_single_takes_its_own_prompt_tag_and_fields() -> None:
    w = single(prompt="{context}\n{question}\nPut it in <final>.", answer_tag="final", max_response_tokens=20)
    inputs = {"question": QUESTION, "context": "C"}
    turn = play_once(w, inputs, {"solver": "<final>x</final>"}).turns[0]
    assert json.loads(turn["messages"]) == [
        {"role": "user", "content": f"C\n{QUESTION}\nPut it in <final>."}
    ]  # a demonstration can't know what context would look like
    assert turn["parsed"] == '"x"'
    assert json.loads(turn["sampling"])["max_tokens"] == 20


def test_single_shows_its_format_with_its_own_prompt_too() -> None:
    chat = json.loads(
        play_once(single("Say: {question}", "a"), {"question": QUESTION}, {"solver": "x"}).turns[0][
            "messages"
        ]
    )
    assert [m["role"] for m in chat] == ["user", "assistant", "user"]
    assert chat[1]["content"] == "<a>eight</a>"


@pytest.mark.parametrize("options", [
    {"top_k": 0}, {"top_k": "4"}, {"top_k": True}, {"max_sub_questions": 0}, {"readers": "no"}, {"k": 3},
    {"max_sub_questions": 2.5},
])  # fmt: skip
def test_options_of_the_wrong_kind_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        load_workflow("qa_decompose", options)


@pytest.mark.parametrize(
    ("use", "option"),
    [
        ("qa_rewrite", "top_k"),
        ("qa_summarise", "top_k"),
        ("qa_summarise", "max_sub_questions"),
        ("qa_select", "top_k"),
        ("qa_select", "top_k_again"),
        ("mask", "top_k"),
        ("mask", "max_rounds"),
    ],
)
def test_counts_are_whole_numbers_of_at_least_one(use: str, option: str) -> None:
    for value in (0, -1, 1.5, "2", True, None):
        with pytest.raises(UsageError, match=option):
            load_workflow(use, {option: value})


@pytest.mark.parametrize("options", [
    {"prompt": "no variable"}, {"prompt": "{question"}, {"prompt": 3}, {"answer_tag": "a b"},
    {"max_response_tokens": 0},
])  # fmt: skip
def test_options_of_single_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(WorkflowError):
        single(**options)


def test_default_prompts_leave_a_small_context_to_the_passages() -> None:
    tokenizer = ScriptedModel(lambda messages, sampling: "")
    for turn in play(top_k=1).turns:
        if turn["event"] == "llm":
            words = sum(len(m["content"].split()) for m in json.loads(turn["messages"]))
            assert words < 130
            assert tokenizer.render(json.loads(turn["messages"])) == turn["prompt_token_ids"]
