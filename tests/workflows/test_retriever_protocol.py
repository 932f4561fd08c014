"""Forms of requests and shapes of replies of retrieval servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.retrieval_servers import ask, pool, run
from workflows.tools.retriever_protocol import (
    ProtocolError,
    decode_reply,
    decode_request,
    document,
    encode_reply,
    encode_request,
)

DOCUMENT = {"id": "1", "title": "T", "text": "words"}


@pytest.mark.parametrize(
    "reply",
    [
        [{"top_k_docs": [DOCUMENT]}],
        {"top_k_docs": [DOCUMENT]},
        {"result": [[DOCUMENT]]},
        {"result": [[{"document": DOCUMENT, "score": None}]]},
        {"result": [[{"document": {"id": 1, "contents": '"T"\nwords'}}]]},
        {"result": [[{"_id": "1", "title": "T", "content": "words"}]]},
    ],
)
def test_every_shape_of_reply_is_the_same_document(stub_server, reply):
    assert ask(pool(stub_server(lambda path, body: (200, reply)).url), "q") == [[DOCUMENT]]


@pytest.mark.parametrize(
    ("path", "form", "otherwise"),
    [
        ("/retrieve", "questions", 404),
        ("/retrieve", "queries", 422),
        ("/query", "queries", 500),
        ("/search", "questions", 400),
        ("/", "queries", 404),
    ],
)
def test_path_and_form_are_found_out_once_and_remembered(stub_server, path, form, otherwise):
    def reply(at: str, body: Any) -> tuple[int, Any]:
        if at == path and form in body:
            return 200, {"result": [[DOCUMENT] for _ in body[form]]}
        return (otherwise if at == path else 404), {"detail": "what?"}

    served = stub_server(reply)
    retriever = pool(served.url)

    async def three() -> None:
        for _ in range(3):
            assert await retriever.search(["a", "b"], 1) == [[DOCUMENT]] * 2

    run(retriever, three)
    asked = [(at, form in body) for at, body in served.server.requests]
    assert asked[-3:] == [(path, True)] * 3
    assert asked.count((path, True)) == 3


def test_a_server_that_moves_to_another_path_is_found_again(stub_server):
    paths = ["/retrieve"]
    served = stub_server(lambda at, _: (200, {"result": [[DOCUMENT]]}) if at == paths[0] else (404, "gone"))
    retriever = pool(served.url)

    async def before_and_after() -> None:
        await retriever.search(["a"])
        paths[0] = "/search"
        assert await retriever.search(["a"]) == [[DOCUMENT]]

    run(retriever, before_and_after)


def test_blank_queries_are_not_sent_and_shift_nothing(stub_server):
    served = stub_server(lambda at, body: (200, [{"top_k_docs": [q]} for q in body["questions"]]))
    found = ask(pool(served.url), "", "one", "  ", "two", "\n")
    assert [[d["text"] for d in documents] for documents in found] == [[], ["one"], [], ["two"], []]
    assert served.server.requests[-1][1]["questions"] == ["one", "two"]
    assert ask(pool(served.url), "", " ") == [[], []]
    assert len(served.server.requests) == 1


def test_more_documents_than_asked_are_cut_and_those_without_an_id_get_one(stub_server):
    served = stub_server(lambda at, body: (200, {"result": [["x", "y", "x"]]}))
    (documents,) = ask(pool(served.url), "q", top_k=2)
    assert [d["text"] for d in documents] == ["x", "y"]
    assert documents[0]["id"] != documents[1]["id"]
    assert document("x")["id"] == documents[0]["id"]


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


documents = st.fixed_dictionaries(
    {"id": texts, "title": st.text(), "text": texts},
    optional={"score": st.floats(allow_nan=False, allow_infinity=False)},
)


@settings(max_examples=50)
@given(
    st.lists(st.text(), max_size=4), st.integers(1, 9), st.sampled_from(["questions", "queries"]), st.data()
)
def test_what_is_encoded_is_decoded(queries, top_k, form, data):
    search = decode_request(json.loads(json.dumps(encode_request(queries, top_k, form))))
    assert (search.queries, search.top_k, search.form) == (tuple(queries), top_k, form)
    found = [data.draw(st.lists(documents, max_size=3)) for _ in queries]
    back = decode_reply(json.loads(json.dumps(encode_reply(found, search))), len(queries))
    kept = found if search.scores else [[{k: d[k] for k in d if k != "score"} for d in ds] for ds in found]
    assert back == kept


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: (
            st.lists(c) | st.dictionaries(st.sampled_from(["result", "top_k_docs", "text", "document"]), c)
        ),
        max_leaves=8,
    )
)
def test_any_reply_gives_documents_or_a_protocol_error(body):
    try:
        found = decode_reply(body, 1)
    except ProtocolError:
        return
    assert all(d["text"].strip() and isinstance(d["id"], str) for ds in found for d in ds)
