"""The retrieval server that ships: over HTTP it gives what the local index gives."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.retrieval_servers import ask, pool, run
from workflows.errors import UsageError
from workflows.tools.retriever import Bm25Retriever
from workflows.tools.serve_corpus import serve

QUERIES = ["capital of Albania", "", "zzz", "Fe", "  ", "capital of Albania", "symbol of iron"]


def test_server_and_pool_give_what_the_local_index_gives(good_server, facts_index):
    for path in ("", "/", "/retrieve", "/search"):
        assert ask(pool(good_server.url + path), *QUERIES) == facts_index.search(QUERIES, 3)
    retriever = pool(good_server.url)
    found = run(retriever, lambda: retriever({"query": "capital of Albania"}))
    assert found == {
        "documents": facts_index.search(["capital of Albania"], 4)[0],
        "endpoint": good_server.url,
        "attempts": 1,
    }


def test_the_queries_form_gives_the_same_without_scores(good_server, facts_index):
    body = json.dumps({"queries": QUERIES, "topk": 3, "return_scores": False}).encode()
    with urllib.request.urlopen(f"{good_server.url}/retrieve", body) as reply:
        found = json.load(reply)["result"]
    assert found == [
        [{k: d[k] for k in ("id", "title", "text")} for d in ds] for ds in facts_index.search(QUERIES, 3)
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/retrieve", b"{nope", 400, "not JSON"),
        ("/retrieve", b"[" * 100_000, 400, "not JSON"),
        ("/retrieve", b"[]", 400, "questions"),
        ("/retrieve", b'{"questions": "one"}', 400, "list of texts"),
        ("/query", b'{"questions": [1], "N": 1}', 400, "list of texts"),
        ("/search", b'{"queries": ["a"], "topk": 0}', 400, "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": true}', 400, "topk"),
        ("/elsewhere", b"{}", 404, "/retrieve"),
    ],
)
def test_what_the_server_can_not_answer_it_says_in_json(good_server, path, body, status, says):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(good_server.url + path, body)
    assert refused.value.code == status
    assert says in json.load(refused.value)["error"]
    with urllib.request.urlopen(f"{good_server.url}/health") as health:  # and it lives on
        assert json.load(health) == {"status": "ok", "passages": 872}


def test_many_at_once_get_their_own_answers(good_server, facts_index):
    queries = [f"capital of {place}" for place in ("Albania", "France", "Peru", "Kenya")] * 25
    retriever = pool(good_server.url)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever({"query": q, "top_k": 2}) for q in queries))

    expected = dict(zip(queries[:4], facts_index.search(queries[:4], 2), strict=True))
    assert [a["documents"] for a in run(retriever, ask_all)] == [expected[q] for q in queries]


def test_the_command_serves_and_ends_cleanly_on_a_signal(facts_index):
    command = [sys.executable, "-m", "pipeline", "serve-retriever", "--corpus", "facts", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    servers = {number: subprocess.Popen(command, **pipes) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, server in servers.items():
        ready = server.stdout.readline()
        assert "872 passages of facts at http://127.0.0.1:" in ready
        url = next(word for word in ready.split() if word.startswith("http")).rstrip(";")
        assert ask(pool(url), "Fe") == facts_index.search(["Fe"], 3)
        server.send_signal(number)
        out, err = server.communicate(timeout=30)
        assert (server.returncode, err) == (0, "")
        assert "stopped; 1 queries" in out


@pytest.mark.parametrize(
    ("corpus", "host", "says"),
    [("nowhere.jsonl", "127.0.0.1", "nowhere.jsonl"), ("facts", "192.0.2.1", "--port")],
)
def test_what_can_not_be_served_is_refused_with_one_message(corpus, host, says):
    with pytest.raises(UsageError, match=says):
        serve(Bm25Retriever(corpus), corpus, host, 0, lambda line: None)
