"""The workflow qa_summarise: every branch of its graph."""

from __future__ import annotations

import json

import pytest

from tests.support.qa_plays import QUESTION, TWO, Shelf, asked, queries, steps, workflow_of
from workflows.playing.record import Played
from workflows.testing import play_once


def summarise(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "decomposer": TWO,
        "summariser": '{"sub_answers": ["Jane Austen", "Steventon"]}',
        "answerer": "<answer>Steventon</answer>",
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_summarise"), {"question": QUESTION}, replies, tools=tools)


def test_one_summary_answers_all_sub_questions_from_all_passages() -> None:
    played = summarise()
    assert steps(played) == ["decompose", "retrieve0", "retrieve1", "summarise", "answer"]
    prompt = asked(played, "summarise")[0]
    assert prompt.startswith(
        "Text:\n1: T: about Who wrote Emma? 0\n2: T: about Where was Jane Austen born? 0\n"
        "1: T: about Who wrote Emma? 1\n"
    )
    assert prompt.count("everywhere") == 1
    assert "Queries:\n1: Who wrote Emma?\n2: Where was Jane Austen born?\nQuestion: " in prompt
    assert asked(played, "answer")[0].startswith(
        "Text: Who wrote Emma?: Jane Austen\nWhere was Jane Austen born?: Steventon\nQuestion: "
    )
    assert [t["parents"] for t in played.turns] == [[], [0], [0], [0, 1, 2], [0, 3]]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('{"sub_answers": ["Jane Austen"]}', "Jane Austen|unknown"),
        ('{"sub_answers": ["a", "b", "c"]}', "a|b"),
        ('{"sub_answers": []}', "unknown|unknown"),
    ],
)
def test_each_sub_question_has_one_answer_or_is_unknown(said: str, shown: str) -> None:
    one, other = shown.split("|")
    assert asked(summarise(summariser=said), "answer")[0].startswith(
        f"Text: Who wrote Emma?: {one}\nWhere was Jane Austen born?: {other}\nQuestion: "
    )


def test_a_summary_that_is_no_list_is_shown_as_it_stands_and_a_blank_one_as_nothing() -> None:
    assert asked(summarise(summariser="It was\nAusten"), "answer")[0].startswith("Text: It was\nAusten\n")
    assert asked(summarise(summariser=" "), "answer")[0].startswith("Text: (nothing found)\n")


def test_without_any_passage_or_sub_question_there_is_nothing_to_summarise() -> None:
    nothing = summarise(Shelf(unknown=QUESTION), decomposer="?")
    assert steps(nothing) == ["decompose", "retrieve0", "answer"]
    assert asked(nothing, "answer")[0].startswith(f"Text: {QUESTION}: (nothing found)\n")
    refused = summarise(Shelf(refused=QUESTION), decomposer="?")
    assert steps(refused) == ["decompose", "retrieve0", "answer"]
    none = summarise(decomposer='{"sub_queries": []}')
    assert steps(none) == ["decompose", "answer"]
    half = summarise(Shelf(unknown="Who wrote Emma?"))
    assert steps(half) == ["decompose", "retrieve0", "retrieve1", "summarise", "answer"]
    assert asked(half, "summarise")[0].startswith("Text:\n2: T: about Where was Jane Austen born? 0\n")


def test_five_sub_questions_are_the_most() -> None:
    many = json.dumps({"sub_queries": [f"{n}?" for n in range(7)]})
    assert queries(summarise(decomposer=many)) == [f"{n}?" for n in range(5)]
