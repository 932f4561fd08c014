"""The pool of retrieval servers: real servers on loopback, good ones and every kind of bad one."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli.serve_retriever import RetrieverServer, serve
from workflows.errors import InfraError, ToolRefusal, UsageError, WorkflowError
from workflows.loading import load_workflow
from workflows.playing.play import Played, PlayLimits
from workflows.testing import play_once
from workflows.tools.retriever import Bm25Retriever, make_retriever
from workflows.tools.retriever_http import HttpRetriever
from workflows.tools.retriever_protocol import (
    ProtocolError,
    decode_reply,
    decode_request,
    document,
    encode_reply,
    encode_request,
)
from workflows.trajectory import INFRA_ERROR

QUERIES = ["capital of Albania", "", "zzz", "Fe", "  ", "capital of Albania", "symbol of iron"]


@pytest.fixture(scope="module")
def facts() -> Bm25Retriever:
    return Bm25Retriever()


class Served:
    """A server in a thread."""

    def __init__(self, server: ThreadingHTTPServer):
        self.server = server
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self._thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def good(facts) -> Iterator[Served]:
    served = Served(RetrieverServer(("127.0.0.1", 0), facts))
    yield served
    served.stop()


class Stub(ThreadingHTTPServer):
    """Answers with what `reply(path, body)` gives: a status, and text, JSON, or None to hang up."""

    daemon_threads = True

    def __init__(self, reply: Callable[[str, Any], tuple[int, Any]]):
        super().__init__(("127.0.0.1", 0), _StubHandler)
        self.reply = reply
        self.requests: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _StubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        status, content = self.server.reply(self.path, body)
        if content is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(reply: Callable[[str, Any], tuple[int, Any]]) -> Served:
        running.append(Served(Stub(reply)))
        return running[-1]

    yield start
    for served in running:
        served.stop()


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def pool(*urls: str, **options: Any) -> HttpRetriever:
    return HttpRetriever(urls, **{"timeout_seconds": 5.0, "attempts": 3, "backoff_seconds": 0.01, **options})


def run(retriever: HttpRetriever, work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        try:
            return await work()
        finally:
            await retriever.aclose()

    return asyncio.run(main())


def ask(retriever: HttpRetriever, *queries: str, top_k: int = 3) -> list[list[dict[str, Any]]]:
    return run(retriever, lambda: retriever.search(list(queries), top_k))


# --- one server, the local index ------------------------------------------------------------------------


def test_server_and_pool_give_what_the_local_index_gives(good, facts):
    for url in (good.url, f"{good.url}/", f"{good.url}/retrieve", f"{good.url}/search"):
        assert ask(pool(url), *QUERIES) == facts.search(QUERIES, 3)
    retriever = pool(good.url)
    found = run(retriever, lambda: retriever({"query": "capital of Albania"}))
    assert found == {
        "documents": facts.search(["capital of Albania"], 4)[0],
        "endpoint": good.url,
        "attempts": 1,
    }


def test_the_queries_form_gives_the_same_without_scores(good, facts):
    body = json.dumps({"queries": QUERIES, "topk": 3, "return_scores": False}).encode()
    with urllib.request.urlopen(f"{good.url}/retrieve", body) as reply:
        found = json.load(reply)["result"]
    assert found == [
        [{k: d[k] for k in ("id", "title", "text")} for d in ds] for ds in facts.search(QUERIES, 3)
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
def test_what_the_server_can_not_answer_it_says_in_json(good, path, body, status, says):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(good.url + path, body)
    assert refused.value.code == status
    assert says in json.load(refused.value)["error"]
    with urllib.request.urlopen(f"{good.url}/health") as health:  # and it lives on
        assert json.load(health) == {"status": "ok", "passages": 872}


def test_many_at_once_get_their_own_answers(good, facts):
    queries = [f"capital of {place}" for place in ("Albania", "France", "Peru", "Kenya")] * 25
    retriever = pool(good.url)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever({"query": q, "top_k": 2}) for q in queries))

    expected = dict(zip(queries[:4], facts.search(queries[:4], 2), strict=True))
    assert [a["documents"] for a in run(retriever, ask_all)] == [expected[q] for q in queries]


def test_the_command_serves_and_ends_cleanly_on_a_signal(facts):
    command = [sys.executable, "-m", "pipeline", "serve-retriever", "--corpus", "facts", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    servers = {number: subprocess.Popen(command, **pipes) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, server in servers.items():
        ready = server.stdout.readline()
        assert "872 passages of facts at http://127.0.0.1:" in ready
        url = next(word for word in ready.split() if word.startswith("http")).rstrip(";")
        assert ask(pool(url), "Fe") == facts.search(["Fe"], 3)
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
        serve(corpus, host, 0, lambda line: None)


# --- forms and shapes -------------------------------------------------------------------------------------

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
def test_every_shape_of_reply_is_the_same_document(stub, reply):
    assert ask(pool(stub(lambda path, body: (200, reply)).url), "q") == [[DOCUMENT]]


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
def test_path_and_form_are_found_out_once_and_remembered(stub, path, form, otherwise):
    def reply(at: str, body: Any) -> tuple[int, Any]:
        if at == path and form in body:
            return 200, {"result": [[DOCUMENT] for _ in body[form]]}
        return (otherwise if at == path else 404), {"detail": "what?"}

    served = stub(reply)
    retriever = pool(served.url)

    async def three() -> None:
        for _ in range(3):
            assert await retriever.search(["a", "b"], 1) == [[DOCUMENT]] * 2

    run(retriever, three)
    asked = [(at, form in body) for at, body in served.server.requests]
    assert asked[-3:] == [(path, True)] * 3
    assert asked.count((path, True)) == 3


def test_a_server_that_moves_to_another_path_is_found_again(stub):
    paths = ["/retrieve"]
    served = stub(lambda at, body: (200, {"result": [[DOCUMENT]]}) if at == paths[0] else (404, "gone"))
    retriever = pool(served.url)

    async def before_and_after() -> None:
        await retriever.search(["a"])
        paths[0] = "/search"
        assert await retriever.search(["a"]) == [[DOCUMENT]]

    run(retriever, before_and_after)


def test_blank_queries_are_not_sent_and_shift_nothing(stub):
    served = stub(lambda at, body: (200, [{"top_k_docs": [q]} for q in body["questions"]]))
    found = ask(pool(served.url), "", "one", "  ", "two", "\n")
    assert [[d["text"] for d in documents] for documents in found] == [[], ["one"], [], ["two"], []]
    assert served.server.requests[-1][1]["questions"] == ["one", "two"]
    assert ask(pool(served.url), "", " ") == [[], []]
    assert len(served.server.requests) == 1


def test_more_documents_than_asked_are_cut_and_those_without_an_id_get_one(stub):
    served = stub(lambda at, body: (200, {"result": [["x", "y", "x"]]}))
    (documents,) = ask(pool(served.url), "q", top_k=2)
    assert [d["text"] for d in documents] == ["x", "y"]
    assert documents[0]["id"] != documents[1]["id"]
    assert document("x")["id"] == documents[0]["id"]


texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
documents = st.fixed_dictionaries(
    {"id": texts, "title": st.text(), "text": texts},
    optional={"score": st.floats(allow_nan=False, allow_infinity=False)},
)


@settings(deadline=None, max_examples=50)
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


@settings(deadline=None, max_examples=50)
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


# --- outages ------------------------------------------------------------------------------------------------

NONSENSE = [
    (200, "<html>hello</html>"),
    (200, ""),
    (200, "null"),
    (200, "{}"),
    (200, "[1]"),
    (200, '{"result": [[1]]}'),
    (200, '{"result": [[{"title": "no text"}]]}'),
    (200, '{"result": [["x"], ["for a query that was not asked"]]}'),
    (200, '{"result": []}'),
    (200, '{"result": "x"}'),
    (200, "[" * 100_000),
    (500, "oops"),
    (503, "busy"),
    (429, "slow down"),
    (0, None),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", NONSENSE)
def test_an_outage_is_an_error_and_never_a_search_without_results(stub, bad, known):
    works = [known]
    served = stub(lambda at, body: (200, {"result": [["x"]]}) if works[0] else bad)
    retriever = pool(served.url, attempts=2)

    async def ask_twice() -> None:
        if known:
            assert await retriever.search(["q"])
            works[0] = False
        with pytest.raises(InfraError, match="2 attempts") as failed:
            await retriever.search(["q"])
        assert served.url in str(failed.value)
        assert len(str(failed.value)) < 1000
        works[0] = True  # and when it is back, it is used again
        assert (await retriever.search(["q"]))[0][0]["text"] == "x"

    run(retriever, ask_twice)


def test_no_server_at_all_is_an_outage():
    with pytest.raises(InfraError, match="no retrieval server answered in 3 attempts"):
        ask(pool(closed_port()), "q")


def test_killing_the_server_in_the_middle_is_an_outage_and_a_new_one_is_found(facts):
    first = Served(RetrieverServer(("127.0.0.1", 0), facts))
    port = first.server.server_address[1]
    retriever = pool(first.url)

    async def through() -> None:
        assert await retriever.search(["Fe"], 1) == facts.search(["Fe"], 1)
        first.stop()
        await retriever.aclose()  # the thread of a kept connection outlives the server
        with pytest.raises(InfraError):
            await retriever.search(["Fe"], 1)
        second = Served(RetrieverServer(("127.0.0.1", port), facts))
        try:
            assert await retriever.search(["Fe"], 1) == facts.search(["Fe"], 1)
        finally:
            second.stop()

    run(retriever, through)


def test_with_one_of_two_servers_dead_everything_is_answered(good, facts):
    retriever = pool(closed_port(), good.url)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever({"query": q}) for q in ["Fe", "capital of Peru"] * 30))

    answers = run(retriever, ask_all)
    assert {a["endpoint"] for a in answers} == {good.url}
    assert [a["documents"] for a in answers] == facts.search(["Fe", "capital of Peru"] * 30, 4)
    assert sum(a["attempts"] for a in answers) > len(answers)  # the dead one was tried, and that is on record


def test_two_servers_share_the_load(stub):
    served = [stub(lambda at, body: (200, {"result": [["x"]]})) for _ in range(2)]
    retriever = pool(*(s.url for s in served))

    async def ask_all() -> None:
        await asyncio.gather(*(retriever.search(["q"]) for _ in range(40)))

    run(retriever, ask_all)
    assert min(len(s.server.requests) for s in served) >= 15


def test_a_slow_server_is_given_up_and_another_asked(stub, good, facts):
    hold = threading.Event()

    def never(at: str, body: Any) -> tuple[int, Any]:
        hold.wait(30)
        return 200, None

    retriever = pool(stub(never).url, good.url, timeout_seconds=0.3)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["Fe"]) for _ in range(4)))

    assert run(retriever, ask_all) == [facts.search(["Fe"])] * 4
    alone = pool(stub(never).url, timeout_seconds=0.1, attempts=2)
    with pytest.raises(InfraError, match=r"no reply within 0\.1 s"):
        ask(alone, "Fe")
    hold.set()


def test_the_wait_for_a_connection_counts_against_no_limit(stub, monkeypatch):
    """More requests than connections, each quick, all together longer than the limit of one."""
    monkeypatch.setattr("workflows.tools.retriever_server._MAX_CONNECTIONS", 2)
    one_at_a_time = threading.Lock()

    def reply(at: str, body: Any) -> tuple[int, Any]:
        with one_at_a_time:
            time.sleep(0.02)
        return 200, {"result": [["x"]]}

    retriever = pool(stub(reply).url, timeout_seconds=1.0, attempts=1)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["q"]) for _ in range(60)))

    assert len(run(retriever, ask_all)) == 60


def test_a_dead_server_is_left_alone_longer_and_longer_and_one_request_tries_it(stub):
    served = stub(lambda at, body: (503, "down"))
    retriever = pool(served.url, attempts=4, backoff_seconds=0.02)

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["q"]) for _ in range(30)), return_exceptions=True)

    assert all(isinstance(outcome, InfraError) for outcome in run(retriever, crowd))
    # the first time all of them find out; then one tries for all who wait
    assert len(served.server.requests) <= 60 < 30 * 4
    assert retriever._endpoints[0].failures >= 2


def test_while_all_are_down_for_long_a_call_fails_soon(stub):
    served = stub(lambda at, body: (503, "down"))
    retriever = pool(served.url, attempts=4)

    async def ask_on() -> list[int]:
        asked = []
        for _ in range(3):
            before = len(served.server.requests)
            with pytest.raises(InfraError, match="503"):
                await retriever.search(["q"])
            asked.append(len(served.server.requests) - before)
        return asked

    assert run(retriever, ask_on) == [4, 1, 1]


def test_a_busy_server_says_how_long_to_wait(stub):
    answers = iter([(429, "wait")])
    served = stub(lambda at, body: next(answers, (200, {"result": [["x"]]})))
    served.server.headers = {"Retry-After": "0"}
    assert ask(pool(served.url), "q")[0][0]["text"] == "x"


def test_a_refused_query_is_the_policys_doing_and_asked_once(stub):
    answers = iter([(200, {"result": [["x"]]})])
    served = stub(lambda at, body: next(answers, (422, {"detail": "query too long"})))
    retriever = pool(served.url)

    async def ask_twice() -> None:
        await retriever.search(["q"])
        with pytest.raises(ToolRefusal, match="too long"):
            await retriever.search(["q" * 99])

    run(retriever, ask_twice)
    assert len(served.server.requests) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_must_not_be_asked_this_way_is_a_mistake_of_the_settings(stub, status):
    retriever = pool(stub(lambda at, body: (status, "no entry")).url)
    with pytest.raises(WorkflowError, match=r"no entry.*check urls"):
        ask(retriever, "q")
    with pytest.raises(WorkflowError, match="no retrieval server answers"):
        retriever.check()


def test_check_passes_if_any_server_answers(good):
    pool(closed_port(), good.url).check()
    with pytest.raises(WorkflowError, match="no retrieval server answers"):
        pool(closed_port()).check()


def test_stale_kept_connections_are_renewed_without_a_failed_attempt(stub):
    """The server closes each connection after its reply, without a word."""
    served = stub(lambda at, body: (200, {"result": [["x"]]}))
    served.server.RequestHandlerClass = type("Closing", (_StubHandler,), {"timeout": 0.02})
    retriever = pool(served.url, attempts=1)

    async def ask_with_pauses() -> list[Any]:
        answers = []
        for pause in (0.0, 0.02, 0.03, 0.05, 0.02):
            await asyncio.sleep(pause)
            answers.append(await retriever({"query": "q"}))
        return answers

    assert [a["attempts"] for a in run(retriever, ask_with_pauses)] == [1] * 5


def test_a_cancelled_request_closes_its_connection(stub):
    gone = threading.Event()

    class Watching(_StubHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.connection.recv(1) == b"":  # blocks until the client hangs up
                gone.set()

    served = stub(lambda at, body: (200, ""))
    served.server.RequestHandlerClass = Watching
    retriever = pool(served.url)

    async def cancel() -> None:
        task = asyncio.create_task(retriever.search(["q"]))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(gone.wait, 10)
        assert [e.in_flight for e in retriever._endpoints] == [0]

    run(retriever, cancel)


# --- as a tool ------------------------------------------------------------------------------------------


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


def test_it_can_be_pickled_after_use(good, facts):
    retriever = pool(good.url, timeout_seconds=7.0, attempts=2)
    ask(retriever, "Fe")
    again = pickle.loads(pickle.dumps(retriever))
    assert (again.urls, again.timeout_seconds, again.attempts) == ((good.url,), 7.0, 2)
    assert ask(again, "Fe") == facts.search(["Fe"], 3)


def test_in_a_play_a_pool_is_the_index_and_an_outage_is_the_episodes_failure(good):
    workflow = load_workflow("qa_decompose", {"urls": [good.url]})
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


def test_one_factory_makes_both_kinds(good):
    assert isinstance(make_retriever(), Bm25Retriever)
    assert isinstance(make_retriever(urls=[good.url]), HttpRetriever)
    for wrong in ({"corpus": "x.jsonl", "urls": [good.url]}, {"urls": good.url}):
        with pytest.raises(WorkflowError, match="urls"):
            make_retriever(**wrong)
