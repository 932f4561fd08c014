"""The workflow qa_select: every branch of its graph."""

from __future__ import annotations

import json

import pytest

from tests.support.qa_plays import QUESTION, Shelf, asked, of, queries, steps, workflow_of
from workflows.playing.record import Played
from workflows.testing import play_once
from workflows.trajectory import MALFORMED, OK


def select(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "rewriter": '{"query": "author of Emma"}',
        "selector": '{"ids": [2, 1]}',
        "summariser": '{"summary": "By Jane Austen."}',
        "answerer": '{"answer": "Steventon"}',
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_select"), {"question": QUESTION}, replies, tools=tools)


CHOSEN = ["rewrite", "retrieve", "select", "summarise", "answer"]


AGAIN = ["rewrite", "retrieve", "select", "retrieve_again", "summarise", "answer"]


def test_what_is_chosen_by_number_is_summed_up_and_nothing_is_looked_up_again() -> None:
    played = select()
    assert steps(played) == CHOSEN
    assert asked(played, "select")[0].startswith(
        "1: T: about author of Emma 0\n2: T: about author of Emma 1\n"
    )
    assert asked(played, "summarise")[0].startswith(
        "Text: T: about author of Emma 1\nT: about author of Emma 0\nQuestion: "
    )
    assert asked(played, "answer")[0].startswith("Text: By Jane Austen.\nQuestion: ")
    assert of(played, "answer")["parsed"] == '"Steventon"'


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('{"ids": []}', OK),  # nobody is punished for saying that nothing helps
        ('{"ids": [0, 99, -1]}', OK),
        ('{"ids": ["1"]}', MALFORMED),
        ('{"ids": [true]}', MALFORMED),
        ('{"ids": 1}', MALFORMED),
        ("1, 2", MALFORMED),
        ("", MALFORMED),
    ],
)
def test_where_nothing_is_chosen_the_question_itself_is_looked_up(said: str, status: str) -> None:
    played = select(selector=said)
    assert steps(played) == AGAIN
    assert of(played, "select")["status"] == status
    assert queries(played) == ["author of Emma", QUESTION]
    assert json.loads(of(played, "retrieve_again")["tool_request"])["top_k"] == 6
    assert asked(played, "summarise")[0].startswith(f"Text: T: about {QUESTION} 0\n")


def test_a_number_that_is_named_twice_is_one_passage() -> None:
    prompt = asked(select(selector='{"ids": [3, 3, 3]}'), "summarise")[0]
    assert prompt.startswith("Text: T: about author of Emma 2\nQuestion: ")


@pytest.mark.parametrize("shelf", [Shelf(unknown="author of Emma"), Shelf(refused="author of Emma")])
def test_a_query_that_finds_nothing_is_followed_by_the_question(shelf: Shelf) -> None:
    played = select(shelf)
    assert steps(played) == ["rewrite", "retrieve", "retrieve_again", "summarise", "answer"]
    assert asked(played, "summarise")[0].startswith(f"Text: T: about {QUESTION} 0\n")


@pytest.mark.parametrize("shelf", [Shelf(unknown=QUESTION), Shelf(refused=QUESTION)])
def test_where_the_second_retrieval_finds_nothing_the_answer_is_given_without(shelf: Shelf) -> None:
    played = select(shelf, selector='{"ids": []}')
    assert steps(played) == ["rewrite", "retrieve", "select", "retrieve_again", "answer"]
    assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")
    blank = select(Shelf(unknown=QUESTION), rewriter="")
    assert steps(blank) == ["rewrite", "retrieve", "retrieve_again", "answer"]


def test_texts_without_their_key_are_read_as_they_stand() -> None:
    played = select(rewriter="who wrote Emma", summariser="Austen did", answerer="Steventon")
    assert queries(played) == ["who wrote Emma"]
    assert asked(played, "answer")[0].startswith("Text: Austen did\n")
    answer = of(played, "answer")
    assert (answer["status"], answer["parsed"], answer["format_valid"]) == (MALFORMED, '"Steventon"', False)
