"""The workflow qa_decompose: every branch of its graph."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.qa_plays import QUESTION, TWO, Shelf, asked, play, reader, steps
from workflows.playing.attempts import PlayLimits
from workflows.teams.qa_decompose import build as qa
from workflows.testing import play_once
from workflows.trajectory import INFRA_ERROR, MALFORMED, OK


def test_each_sub_question_is_looked_up_and_read_and_the_answer_sees_what_was_found() -> None:
    played = play(top_k=2)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "read0", "read1", "answer"]
    requests = [json.loads(t["tool_request"]) for t in played.turns if t["event"] == "tool"]
    assert requests == [{"query": q, "top_k": 2} for q in json.loads(TWO)["sub_queries"]]
    assert "T: about Who wrote Emma? 0\nT: about Who wrote Emma? 1\neverywhere" in asked(played, "read")[0]
    notes = asked(played, "answer")[0]
    assert "Who wrote Emma?: Jane Austen\n" in notes
    assert "Where was Jane Austen born?: no tag\n" in notes  # malformed, so read as it stands
    assert [t["parents"] for t in played.turns] == [[], [0], [0], [0, 1], [0, 2], [0, 3, 4]]


def test_without_readers_the_answer_sees_each_passage_once_best_ones_first() -> None:
    played = play(readers=False, top_k=1)
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "answer"]
    prompt = asked(played, "answer")[0]
    assert prompt.startswith(
        "Text: T: about Who wrote Emma? 0\nT: about Where was Jane Austen born? 0\neverywhere\nQuestion: "
    )


@pytest.mark.parametrize("reply", ["Who wrote Emma?", '{"sub_queries": [1]}', '{"sub_queries": "Emma"}', "{"])
@pytest.mark.parametrize("readers", [True, False])
def test_a_decomposition_that_breaks_its_format_looks_up_the_question_itself(
    reply: str, readers: bool
) -> None:
    played = play(decomposer=reply, readers=readers)
    assert played.turns[0]["status"] == MALFORMED
    assert [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"] == [
        QUESTION
    ]
    assert played.turns[-1]["step"] == "answer"


def test_no_role_is_ever_asked_about_nothing() -> None:
    for shelf in (Shelf(refused="Who wrote Emma?"), Shelf(unknown="Who wrote Emma?")):
        played = play(shelf)
        assert [t["branch"] for t in played.turns if t["step"] == "read"] == ["1"]
        assert "Who wrote Emma?: (nothing found)\n" in asked(played, "answer")[0]
        assert played.episode["status"] == "ok"


@pytest.mark.parametrize("readers", [True, False])
def test_an_answer_is_given_even_if_nothing_is_found_at_all(readers: bool) -> None:
    played = play(Shelf(unknown=QUESTION), decomposer="none", readers=readers)
    assert steps(played)[-1] == "answer"
    assert "(nothing found)" in asked(played, "answer")[0]


def test_sub_questions_are_asked_once_each_and_not_more_than_wished() -> None:
    same = json.dumps({"sub_queries": ["Who?", "who?", "Where?", "When?"]})
    played = play(decomposer=same, max_sub_questions=3)
    assert [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"] == [
        "Who?", "Where?"
    ]  # fmt: skip


def test_long_passages_are_cut_from_the_lowest_rank_and_the_question_stays() -> None:
    class Long(Shelf):
        async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
            text = "x" * 900
            return {"documents": [{"id": str(i), "title": "", "text": f"{i} {text}"} for i in range(9)]}

    played = play(Long())
    for turn, prompt in zip(
        [t for t in played.turns if t["step"] == "read"], asked(played, "read"), strict=True
    ):
        dropped = json.loads(turn["cut"])["passages"]["items"] if turn["cut"] else 0
        lines = prompt.removeprefix("Text: ").splitlines()
        assert [line[0] for line in lines if line[-3:] == "xxx"] == [str(i) for i in range(9 - dropped)]
        assert QUESTION in prompt
        assert prompt.endswith("\nReply: <answer>your answer</answer>")


def test_an_empty_decomposition_goes_straight_to_the_answer() -> None:
    for readers in (True, False):
        played = play(decomposer='{"sub_queries": []}', readers=readers)
        assert [(t["step"], t["status"]) for t in played.turns] == [("decompose", MALFORMED), ("answer", OK)]
        assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")


def test_a_retriever_that_is_down_for_one_branch_keeps_what_the_others_found() -> None:
    limits = PlayLimits(call_attempts=2, backoff_seconds=0)
    said = {"decomposer": TWO, "reader": reader, "answerer": "<answer>x</answer>"}
    tools = {"retriever": Shelf(down="Who wrote Emma?")}
    played = play_once(qa(), {"question": QUESTION}, said, tools=tools, limits=limits)
    assert [(t["step"] + t["branch"], t["status"], t["attempts"]) for t in played.turns] == [
        ("decompose", OK, 1), ("retrieve0", INFRA_ERROR, 2), ("retrieve1", OK, 1), ("read1", MALFORMED, 1)
    ]  # fmt: skip
    assert (played.episode["status"], played.episode["stop_reason"]) == (INFRA_ERROR, "call_failed")
    assert "connection refused" in played.episode["error"]
