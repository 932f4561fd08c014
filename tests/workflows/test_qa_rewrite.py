"""The workflow qa_rewrite: every branch of its graph."""

from __future__ import annotations

import pytest

from tests.support.qa_plays import QUESTION, Shelf, asked, of, queries, steps, workflow_of
from workflows.playing.record import Played
from workflows.testing import play_once
from workflows.trajectory import OK, TOOL_ERROR


def rewrite(shelf: Shelf | None = None, **said: str) -> Played:
    replies = {
        "rewriter": "<query>author of Emma</query>",
        "selector": "<selected>Jane Austen.\nBorn in Steventon.</selected>",
        "answerer": "<answer>Steventon</answer>",
    } | said
    tools = {"retriever": shelf or Shelf()}
    return play_once(workflow_of("qa_rewrite"), {"question": QUESTION}, replies, tools=tools)


def test_the_rewritten_query_is_looked_up_and_the_answer_sees_what_was_selected() -> None:
    played = rewrite()
    assert steps(played) == ["rewrite", "retrieve", "select", "answer"]
    assert queries(played) == ["author of Emma"]
    selecting = asked(played, "select")[0]
    assert selecting.startswith("Text: T: about author of Emma 0\n")
    assert f"\nQuery: author of Emma\nQuestion: {QUESTION}\n" in selecting
    assert asked(played, "answer")[0].startswith("Text: Jane Austen.\nBorn in Steventon.\nQuestion: ")
    assert [t["parents"] for t in played.turns] == [[], [0], [0, 1], [2]]


def test_a_rewriting_without_its_tag_is_looked_up_as_it_stands_and_a_blank_one_is_the_question() -> None:
    assert queries(rewrite(rewriter="who wrote Emma")) == ["who wrote Emma"]
    assert queries(rewrite(rewriter=" ")) == [QUESTION]
    assert of(rewrite(rewriter="who wrote Emma"), "rewrite")["parsed"] == '"who wrote Emma"'


@pytest.mark.parametrize("shelf", [Shelf(unknown="author of Emma"), Shelf(refused="author of Emma")])
def test_where_nothing_is_found_there_is_nothing_to_select(shelf: Shelf) -> None:
    played = rewrite(shelf)
    assert steps(played) == ["rewrite", "retrieve", "answer"]
    assert of(played, "retrieve")["status"] == (TOOL_ERROR if shelf.refused else OK)
    assert asked(played, "answer")[0].startswith("Text: (nothing found)\n")
    assert played.episode["status"] == "ok"


def test_a_selection_without_its_tag_is_shown_as_it_stands_and_a_blank_one_as_nothing() -> None:
    assert asked(rewrite(selector="Jane Austen"), "answer")[0].startswith("Text: Jane Austen\n")
    assert asked(rewrite(selector="<selected> </selected>"), "answer")[0].startswith(
        "Text: <selected> </selected>\n"
    )
    assert asked(rewrite(selector=""), "answer")[0].startswith("Text: (nothing found)\n")
