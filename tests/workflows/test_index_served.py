"""An index over HTTP and in workflows: the protocol of before, and settings that say how is searched."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from tests.support.retrieval_servers import Served, ask, pool
from tests.support.small_index import HASHED, make_index, write_corpus
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.testing import play_once
from workflows.tools.index.search import IndexRetriever
from workflows.tools.retriever import Bm25Retriever
from workflows.tools.serve_corpus import RetrieverServer

QUERIES = ["capital of Albania", "", "zzz", "Fe", "  ", "capital of Albania", "symbol of iron"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "facts"
    make_index("facts", folder)
    return folder


def post(url: str, body: dict[str, Any]) -> bytes:
    with urllib.request.urlopen(url, json.dumps(body).encode()) as reply:
        return reply.read()


@contextmanager
def serving(retriever: Any) -> Iterator[str]:
    served = Served(RetrieverServer(("127.0.0.1", 0), retriever))
    try:
        yield served.url
    finally:
        served.stop()


@pytest.mark.parametrize("path", ["/retrieve", "/query", "/search"])
@pytest.mark.parametrize(
    "body",
    [
        {"questions": QUERIES, "N": 3},
        {"queries": QUERIES, "topk": 5, "return_scores": True},
        {"queries": QUERIES, "topk": 2, "return_scores": False},
    ],
)
def test_an_index_on_disk_answers_byte_for_byte_as_the_corpus_in_memory(facts, facts_index, path, body):
    with serving(IndexRetriever(str(facts), kind="bm25")) as url, serving(facts_index) as before:
        assert post(url + path, body) == post(before + path, body)
        with urllib.request.urlopen(f"{url}/health") as health:
            assert json.load(health) == {"status": "ok", "passages": 872}


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_a_pool_gives_what_the_index_gives(facts, kind):
    retriever = IndexRetriever(str(facts), kind=kind)
    with serving(retriever) as url:
        assert ask(pool(url), *QUERIES) == retriever.search(QUERIES, 3)


def test_the_command_serves_an_index_and_ends_cleanly_on_a_signal(facts):
    options = ["--index", str(facts), "--kind", "hybrid", "--depth", "20", "--port", "0"]
    command = [sys.executable, "-m", "pipeline", "serve-retriever", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = server.stdout.readline()
    assert f"872 passages of {facts} at http://127.0.0.1:" in ready
    url = next(word for word in ready.split() if word.startswith("http")).rstrip(";")
    expected = IndexRetriever(str(facts), kind="hybrid", depth=20).search(["Fe"], 3)
    assert ask(pool(url), "Fe") == expected
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, "")
    assert "stopped; 1 queries" in out


def test_the_command_serves_a_corpus_with_options_of_words():
    options = ["--corpus", "facts", "--k1", "0.6", "--b", "0.2", "--stemmer", "none", "--port", "0"]
    command = [sys.executable, "-m", "pipeline", "serve-retriever", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = next(w for w in server.stdout.readline().split() if w.startswith("http")).rstrip(";")
    found = ask(pool(url), "symbol of iron")
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    assert found == Bm25Retriever(k1=0.6, b=0.2, stemmer=None).search(["symbol of iron"], 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "needs --corpus FILE or --index FOLDER"),
        (["--index", "nowhere"], "'nowhere' is not an index: it does not exist"),
        (["--corpus", "facts", "--kind", "dense"], "search.kind has no effect on a corpus in memory"),
        (["--index", "nowhere", "--k1", "1"], "give --k1 when the index is built"),
    ],
)
def test_what_can_not_be_served_is_refused_in_one_line(options, says):
    command = [sys.executable, "-m", "pipeline", "serve-retriever", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


# --- workflows --------------------------------------------------------------------------------------------

TEAMS = ["qa_decompose", "qa_rewrite", "qa_summarise", "qa_select", "mask"]


@pytest.mark.parametrize("use", TEAMS)
def test_every_team_that_searches_takes_an_index_by_its_settings(facts, tmp_path, use):
    search = {"index": str(facts), "kind": "hybrid", "depth": 30}
    settings = parse_settings(
        {
            "run": {"root": str(tmp_path)},
            "workflow": {"use": use, "options": {"top_k": 2, "search": search}},
            "tracking": {"uri": "none"},
        }
    )
    retriever = assemble(settings).workflow.tools["retriever"]
    assert isinstance(retriever, IndexRetriever)
    expected = IndexRetriever(str(facts), kind="hybrid", depth=30).search(["Fe"], 2)
    assert retriever.search(["Fe"], 2) == expected


def test_a_run_with_a_stale_index_is_refused_before_it_starts(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", ["red apple"])
    make_index(corpus, tmp_path / "i", kind="bm25")
    write_corpus(tmp_path / "c.jsonl", ["raw apple"])
    settings = parse_settings(
        {
            "run": {"root": str(tmp_path)},
            "workflow": {"use": "qa_rewrite", "options": {"search": {"index": str(tmp_path / "i")}}},
        }
    )
    with pytest.raises(UsageError, match="is stale"):
        assemble(settings)


def test_a_play_finds_in_an_index_by_words_what_it_finds_in_memory(facts):
    question = {"question": "What is the capital of Albania?"}
    options = {"search": {"index": str(facts), "kind": "bm25"}}

    def found(played: Any) -> list[Any]:
        tools = [turn for turn in played.turns if turn["event"] == "tool"]
        return [json.loads(turn["tool_result"]) for turn in tools]

    from_disk = found(play_once(load_workflow("qa_decompose", options), question))
    assert from_disk == found(play_once(load_workflow("qa_decompose", {}), question)) != []
    meant = load_workflow("qa_decompose", {"search": {"index": str(facts), "kind": "dense", "model": HASHED}})
    assert found(play_once(meant, question)) not in ([], from_disk)
