"""The pool of retrieval servers as a tool of a workflow."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tests.support.retrieval_servers import ask, closed_port, pool, run
from workflows.errors import ToolRefusal, WorkflowError
from workflows.loading import load_workflow
from workflows.playing.attempts import PlayLimits
from workflows.playing.record import Played
from workflows.testing import play_once
from workflows.tools.retriever import Bm25Retriever, make_retriever
from workflows.tools.retriever_http import HttpRetriever
from workflows.trajectory import INFRA_ERROR


@pytest.mark.parametrize("request_", [{}, {"query": None}, {"query": " \n"}, {"query": ["capital"]}])
def test_a_query_without_words_is_refused_and_not_sent(request_):
    retriever = pool(closed_port())
    with pytest.raises(ToolRefusal):
        run(retriever, lambda: retriever(request_))


@pytest.mark.parametrize("top_k", [0, True, 2.0, "3"])
def test_a_wrong_top_k_is_the_authors_mistake(top_k):
    retriever = pool(closed_port())
    with pytest.raises(WorkflowError, match="top_k"):
        run(retriever, lambda: retriever({"query": "q", "top_k": top_k}))


@pytest.mark.parametrize(
    ("urls", "options", "says"),
    [
        ([], {}, "list of URLs"),
        ("http://a", {}, "list of URLs"),
        (["localhost:8000"], {}, "http://"),
        (["ftp://a"], {}, "http://"),
        (["http://a", "http://a"], {}, "twice"),
        (["http://a"], {"timeout_seconds": 0}, "timeout_seconds"),
        (["http://a"], {"attempts": 0}, "attempts"),
    ],
)
def test_wrong_options_are_refused_when_the_tool_is_made(urls, options, says):
    with pytest.raises(WorkflowError, match=says):
        HttpRetriever(urls, **options)


def test_it_can_be_pickled_after_use(good_server, facts_index):
    retriever = pool(good_server.url, timeout_seconds=7.0, attempts=2)
    ask(retriever, "Fe")
    again = pickle.loads(pickle.dumps(retriever))
    assert (again.urls, again.timeout_seconds, again.attempts) == ((good_server.url,), 7.0, 2)
    assert ask(again, "Fe") == facts_index.search(["Fe"], 3)


def test_in_a_play_a_pool_is_the_index_and_an_outage_is_the_episodes_failure(good_server):
    workflow = load_workflow("qa_decompose", {"urls": [good_server.url]})
    question = {"question": "What is the capital of Albania?"}
    limits = PlayLimits(call_attempts=2, backoff_seconds=0.0)
    served = play_once(workflow, question, limits=limits)
    local = play_once(load_workflow("qa_decompose", {}), question, limits=limits)
    dead = play_once(workflow, question, limits=limits, tools={"retriever": pool(closed_port())})

    def found(played: Played) -> list[Any]:
        tools = [turn for turn in played.turns if turn["event"] == "tool"]
        return [json.loads(turn["tool_result"])["documents"] for turn in tools]

    assert found(served) == found(local) != []
    outage = next(turn for turn in dead.turns if turn["event"] == "tool")
    assert (outage["status"], outage["tool_result"], outage["attempts"]) == (INFRA_ERROR, None, 2)
    assert "no retrieval server answered" in outage["status_detail"]
    assert dead.episode["status"] == INFRA_ERROR


def test_one_factory_makes_both_kinds(good_server):
    assert isinstance(make_retriever(), Bm25Retriever)
    assert isinstance(make_retriever(urls=[good_server.url]), HttpRetriever)
    for wrong in ({"corpus": "x.jsonl", "urls": [good_server.url]}, {"urls": good_server.url}):
        with pytest.raises(WorkflowError, match="urls"):
            make_retriever(**wrong)
