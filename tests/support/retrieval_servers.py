"""Real retrieval servers on loopback: a good one, and one that answers whatever a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from workflows.tools.retriever import Bm25Retriever
from workflows.tools.retriever_http import HttpRetriever
from workflows.tools.serve_corpus import RetrieverServer


@pytest.fixture(scope="module")
def facts_index() -> Bm25Retriever:
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
def good_server(facts_index) -> Iterator[Served]:
    served = Served(RetrieverServer(("127.0.0.1", 0), facts_index))
    yield served
    served.stop()


class Stub(ThreadingHTTPServer):
    """Answers with what `reply(path, body)` gives: a status, and text, JSON, or None to hang up."""

    daemon_threads = True

    def __init__(self, reply: Callable[[str, Any], tuple[int, Any]]):
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.reply = reply
        self.requests: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class StubHandler(BaseHTTPRequestHandler):
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
def stub_server() -> Iterator[Callable[..., Served]]:
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
