"""The pool of retrieval servers where some or all are down, slow, busy or wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.support.retrieval_servers import Served, StubHandler, ask, closed_port, pool, run
from workflows.errors import InfraError, ToolRefusal, WorkflowError
from workflows.tools.serve_corpus import RetrieverServer

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
def test_an_outage_is_an_error_and_never_a_search_without_results(stub_server, bad, known):
    works = [known]
    served = stub_server(lambda at, body: (200, {"result": [["x"]]}) if works[0] else bad)
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


def test_killing_the_server_in_the_middle_is_an_outage_and_a_new_one_is_found(facts_index):
    first = Served(RetrieverServer(("127.0.0.1", 0), facts_index))
    port = first.server.server_address[1]
    retriever = pool(first.url)

    async def through() -> None:
        assert await retriever.search(["Fe"], 1) == facts_index.search(["Fe"], 1)
        first.stop()
        await retriever.aclose()  # the thread of a kept connection outlives the server
        with pytest.raises(InfraError):
            await retriever.search(["Fe"], 1)
        second = Served(RetrieverServer(("127.0.0.1", port), facts_index))
        try:
            assert await retriever.search(["Fe"], 1) == facts_index.search(["Fe"], 1)
        finally:
            second.stop()

    run(retriever, through)


def test_with_one_of_two_servers_dead_everything_is_answered(good_server, facts_index):
    retriever = pool(closed_port(), good_server.url)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever({"query": q}) for q in ["Fe", "capital of Peru"] * 30))

    answers = run(retriever, ask_all)
    assert {a["endpoint"] for a in answers} == {good_server.url}
    assert [a["documents"] for a in answers] == facts_index.search(["Fe", "capital of Peru"] * 30, 4)
    assert sum(a["attempts"] for a in answers) > len(answers)  # the dead one was tried, and that is on record


def test_two_servers_share_the_load(stub_server):
    served = [stub_server(lambda at, body: (200, {"result": [["x"]]})) for _ in range(2)]
    retriever = pool(*(s.url for s in served))

    async def ask_all() -> None:
        await asyncio.gather(*(retriever.search(["q"]) for _ in range(40)))

    run(retriever, ask_all)
    assert min(len(s.server.requests) for s in served) >= 15


def test_a_slow_server_is_given_up_and_another_asked(stub_server, good_server, facts_index):
    hold = threading.Event()

    def never(at: str, body: Any) -> tuple[int, Any]:
        hold.wait(30)
        return 200, None

    retriever = pool(stub_server(never).url, good_server.url, timeout_seconds=0.3)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["Fe"]) for _ in range(4)))

    assert run(retriever, ask_all) == [facts_index.search(["Fe"])] * 4
    alone = pool(stub_server(never).url, timeout_seconds=0.1, attempts=2)
    with pytest.raises(InfraError, match=r"no reply within 0\.1 s"):
        ask(alone, "Fe")
    hold.set()


def test_the_wait_for_a_connection_counts_against_no_limit(stub_server, monkeypatch):
    """More requests than connections, each quick, all together longer than the limit of one."""
    monkeypatch.setattr("workflows.tools.retriever_server._MAX_CONNECTIONS", 2)
    one_at_a_time = threading.Lock()

    def reply(at: str, body: Any) -> tuple[int, Any]:
        with one_at_a_time:
            time.sleep(0.02)
        return 200, {"result": [["x"]]}

    retriever = pool(stub_server(reply).url, timeout_seconds=1.0, attempts=1)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["q"]) for _ in range(60)))

    assert len(run(retriever, ask_all)) == 60


def test_a_dead_server_is_left_alone_longer_and_longer_and_one_request_tries_it(stub_server):
    served = stub_server(lambda at, body: (503, "down"))
    retriever = pool(served.url, attempts=4, backoff_seconds=0.02)

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(retriever.search(["q"]) for _ in range(30)), return_exceptions=True)

    assert all(isinstance(outcome, InfraError) for outcome in run(retriever, crowd))
    # the first time all of them find out; then one tries for all who wait
    assert len(served.server.requests) <= 60 < 30 * 4
    assert retriever._endpoints[0].failures >= 2


def test_while_all_are_down_for_long_a_call_fails_soon(stub_server):
    served = stub_server(lambda at, body: (503, "down"))
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


def test_a_busy_server_says_how_long_to_wait(stub_server):
    answers = iter([(429, "wait")])
    served = stub_server(lambda at, body: next(answers, (200, {"result": [["x"]]})))
    served.server.headers = {"Retry-After": "0"}
    assert ask(pool(served.url), "q")[0][0]["text"] == "x"


def test_a_refused_query_is_the_policys_doing_and_asked_once(stub_server):
    answers = iter([(200, {"result": [["x"]]})])
    served = stub_server(lambda at, body: next(answers, (422, {"detail": "query too long"})))
    retriever = pool(served.url)

    async def ask_twice() -> None:
        await retriever.search(["q"])
        with pytest.raises(ToolRefusal, match="too long"):
            await retriever.search(["q" * 99])

    run(retriever, ask_twice)
    assert len(served.server.requests) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_must_not_be_asked_this_way_is_a_mistake_of_the_settings(stub_server, status):
    retriever = pool(stub_server(lambda at, body: (status, "no entry")).url)
    with pytest.raises(WorkflowError, match=r"no entry.*check urls"):
        ask(retriever, "q")
    with pytest.raises(WorkflowError, match="no retrieval server answers"):
        retriever.check_ready()


def test_check_passes_if_any_server_answers(good_server):
    pool(closed_port(), good_server.url).check_ready()
    with pytest.raises(WorkflowError, match="no retrieval server answers"):
        pool(closed_port()).check_ready()


def test_stale_kept_connections_are_renewed_without_a_failed_attempt(stub_server):
    """The server closes each connection after its reply, without a word."""
    served = stub_server(lambda at, body: (200, {"result": [["x"]]}))
    served.server.RequestHandlerClass = type("Closing", (StubHandler,), {"timeout": 0.02})
    retriever = pool(served.url, attempts=1)

    async def ask_with_pauses() -> list[Any]:
        answers = []
        for pause in (0.0, 0.02, 0.03, 0.05, 0.02):
            await asyncio.sleep(pause)
            answers.append(await retriever({"query": "q"}))
        return answers

    assert [a["attempts"] for a in run(retriever, ask_with_pauses)] == [1] * 5


def test_a_cancelled_request_closes_its_connection(stub_server):
    gone = threading.Event()

    class Watching(StubHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.connection.recv(1) == b"":  # blocks until the client hangs up
                gone.set()

    served = stub_server(lambda at, body: (200, ""))
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
