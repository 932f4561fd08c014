"""Search-R1's own retrieval server, which fails where scores are not asked for."""

from __future__ import annotations

import pytest

from tests.support.retrieval_servers import ask, pool
from workflows.errors import InfraError

DOCUMENT = {"id": "7", "contents": '"Ada Lovelace"\nShe wrote the first program.'}
READ = {"id": "7", "title": "Ada Lovelace", "text": "She wrote the first program."}


def search_r1(path, body):
    """As its FastAPI app answers: `results, scores = …` fails where there are no scores."""
    if path != "/retrieve":
        return 404, {"detail": "Not Found"}
    if "queries" not in body:
        return 422, {"detail": [{"loc": ["body", "queries"], "msg": "Field required"}]}
    if not body.get("return_scores"):
        return 500, "Internal Server Error"
    return 200, {"result": [[{"document": DOCUMENT, "score": 0.75}] for _ in body["queries"]]}


def without_scores(path, body):
    """A server that knows no scores and refuses to be asked for them."""
    if path != "/retrieve" or "queries" not in body or body.get("return_scores"):
        return 422, {"detail": "return_scores must be false"}
    return 200, {"result": [[DOCUMENT] for _ in body["queries"]]}


def test_search_r1s_server_is_asked_for_scores(stub_server):
    served = stub_server(search_r1)
    retriever = pool(served.url)
    retriever.check_ready()
    assert ask(retriever, "first program", "Ada") == [[READ | {"score": 0.75}]] * 2
    assert served.server.requests[-1][1]["return_scores"] is True


def test_a_server_that_refuses_scores_is_asked_without_and_remembered(stub_server):
    served = stub_server(without_scores)
    retriever = pool(served.url)
    assert ask(retriever, "Ada") == [[READ]]
    asked = len(served.server.requests)
    assert ask(retriever, "Ada") == [[READ]]
    assert len(served.server.requests) == asked + 1


def test_a_server_that_fails_whatever_it_is_asked_is_an_outage(stub_server):
    served = stub_server(lambda path, body: (500, "Internal Server Error"))
    with pytest.raises(InfraError, match="500"):
        ask(pool(served.url, attempts=1), "Ada")
