"""Thoughts of models: what is said outside them counts, and nothing that is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rewards.answers import answer_of
from rewards.base import PlayedEpisode
from rewards.grading.lines import graded, grader_of
from rewards.grading.math_extract import extract_answer
from rewards.math_correct import MathCorrect
from rewards.pass_rate_by_round import PassRateByRound
from workflows.errors import WorkflowError
from workflows.parsers import JsonKey, Raw, StrictTags
from workflows.teams import code, math
from workflows.testing import play_once
from workflows.thinking import AfterThinking, after_thinking

SAID = "<code>return 2</code>"
PAIRS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<THINK>", "</Think>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<seed:think>", "</seed:think>"),
]


@pytest.mark.parametrize(("opens", "closes"), PAIRS)
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("{o}Perhaps <code>1</code>.{c}{said}", SAID),
        ("Perhaps <code>1</code>.{c}{said}", SAID),  # the chat template opened it
        ("{o}Perhaps <code>1</code> would do, but", ""),
        ("{said}{o}or <code>1</code>", SAID),
        ("{o}a{c}{said}{o}or <code>1</code>, but", SAID),
        ("{o}a{o}b{c}<code>1</code>{c}{said}", SAID),
        ("{o}a{o}b{c}<code>1</code>", ""),
        ("{o}a{c}{o}b{c}{said}", SAID),
        ("{o}a{c}", ""),
        ("{o}{c}{said}", SAID),
        ("a{c}b{c}{said}", SAID),
        ("{said}{c}", ""),
        ("{o}", ""),
        ("{c}{said}", SAID),
    ],
)
def test_thoughts_of_every_spelling_leave_nothing_behind(opens, closes, reply, said):
    assert after_thinking(reply.format(o=opens, c=closes, said=SAID)) == said


@pytest.mark.parametrize(
    "text",
    ["", "no thoughts", " kept as it is \n", "a < b > c", "<thinker>x</thinker>", "[think tank]", "think>"],
)
def test_a_reply_without_marks_is_what_it_says(text):
    assert after_thinking(text) == text


def test_marks_of_another_name_close_no_thought():
    assert after_thinking(f"<think>a</reasoning>{SAID}") == ""
    assert after_thinking(f"<think><reasoning>a</think>{SAID}") == SAID


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think>a</think>", "<", "[THINK]"])
def test_rambling_thoughts_are_read_in_linear_time(piece):
    after_thinking(piece * (1_000_000 // len(piece)))


@pytest.mark.parametrize(
    "parser", [StrictTags("code"), StrictTags(("code", "plan")), Raw(), JsonKey("queries")]
)
def test_thoughts_alone_are_invalid_and_read_as_nothing(parser):
    parsed = AfterThinking(parser).parse("<think>Perhaps <code>1</code> would do, but")
    assert not parsed.valid
    assert not any(parsed.best.values() if isinstance(parsed.best, dict) else parsed.best)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("a thought <code>1</code>", ""),
        (f"a thought</think>{SAID}", SAID),
        (f"a thought</reasoning>{SAID}", SAID),
        (f"<think>a thought</think>{SAID}", SAID),
        (f"a</think>{SAID}<think>or <code>1</code>", SAID),
        ("", ""),
    ],
)
def test_where_the_prompt_opens_a_thought_a_reply_must_close_it(reply, said):
    assert after_thinking(reply, opened=True) == said
    assert AfterThinking(StrictTags("code"), opened=True).parse(reply).valid == bool(said)


@pytest.mark.parametrize("workflow", [code, math])
def test_how_thoughts_begin_is_true_false_or_opened(workflow):
    for reasoning in (True, False, "opened"):
        workflow.build(reasoning=reasoning)
    with pytest.raises(WorkflowError, match="option reasoning must be true, false or 'opened', got 'open'"):
        workflow.build(reasoning="open")


# --- in the workflows and rewards -----------------------------------------------------------------------

TESTS = json.dumps([{"input": "", "output": "2\n"}])
TASK = {"problem": "Print 2.", "public_tests": TESTS, "fn_name": None}
OPEN = "<think>Perhaps <code>print(2)</code> would do, but"


def _coded(reply: str, reasoning: Any = True):
    replies = {
        "planner": "secret plan</think><pseudocode>p</pseudocode>",
        "coder": reply,
        "reflector": "</think><reflection>r</reflection>",
    }
    return play_once(code.build(max_rounds=2, reasoning=reasoning), TASK, replies)


@pytest.mark.parametrize(("reply", "reasoning"), [(OPEN, True), (OPEN, "opened"), (OPEN[7:], "opened")])
def test_code_in_a_thought_that_never_ends_earns_nothing_and_is_shown_to_nobody(reply, reasoning):
    played = _coded(reply, reasoning)
    seen = [turn["messages"] or "" for turn in played.turns] + [
        turn["tool_request"] or "" for turn in played.turns
    ]
    assert not [text for text in seen if "Perhaps" in text or "secret" in text]
    results = [json.loads(turn["tool_result"]) for turn in played.turns if turn["event"] == "tool"]
    assert {result["verdict"] for result in results} == {"no_code"}
    for turn in played.turns:
        turn.update({name: turn[name] and json.loads(turn[name]) for name in ("parsed", "tool_result")})
    episode = PlayedEpisode("t/0", "ok", TASK, {"private_tests": json.loads(TESTS)}, played.turns)
    for reward in (PassRateByRound(), PassRateByRound(tests="public"), PassRateByRound(give="final")):
        assert {value for value in reward(episode) if value is not None} == {0.0}


def test_an_answer_in_a_thought_that_never_ends_is_none():
    forms = {
        "solver": "<think>a secret <ANSWER>42</ANSWER>",
        "verifier": "<STATUS>correct</STATUS><ERROR_TYPE>none</ERROR_TYPE><FEEDBACK>f</FEEDBACK>",
        "refiner": "<REFINED_SOLUTION>s</REFINED_SOLUTION><ANSWER>42</ANSWER>",
        "finaliser": "<think>a secret <FINAL_ANSWER>42</FINAL_ANSWER> is it, or is",
    }
    played = play_once(math.build(reasoning=True), {"problem": "p"}, forms)
    assert "secret" not in "".join(turn["messages"] for turn in played.turns)
    for turn in played.turns:
        turn["parsed"] = turn["parsed"] and json.loads(turn["parsed"])
    episode = PlayedEpisode("t/0", "ok", {"problem": "p"}, {"answers": ["42"]}, played.turns)
    assert set(MathCorrect()(episode)) == {0.0}


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<think>Paris</think>Rome", "Rome"), ("<think>Paris", ""), ("Paris</think>", ""), ("Rome", "Rome")],
)
def test_a_reply_that_is_read_raw_is_read_without_its_thoughts(text, answer):
    turn = {"step": "answer", "status": "ok", "format_valid": None, "parsed": None, "response_text": text}
    assert answer_of(turn) == answer


def test_no_way_in_reads_a_thought_that_never_ends():
    assert extract_answer(r"<think>so \boxed{7}") is None
    assert extract_answer(r"<think>\boxed{6}</think> \boxed{7}") == "7"
    (said,) = graded([b'{"prediction": "<think>Paris", "golds": ["Paris"]}'], *grader_of("qa"))
    assert said["exact_match"] == 0.0
    (said,) = graded([b'{"prediction": "<think>7", "gold": "7"}'], *grader_of("math"))
    assert said["correct"] is False
