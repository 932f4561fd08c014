"""`serve-retriever`: an index in memory or on disk over HTTP, with the protocol that `HttpRetriever` speaks.

One process, one thread for each connection; searches of several connections share the index. For a machine
of one's own or a cluster that one trusts: there is no authentication, so it listens on loopback by default.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from workflows.errors import UsageError
from workflows.tools.retriever_protocol import PATHS, ProtocolError, decode_request, encode_reply

MAX_BODY_BYTES: Final = 32 << 20
IDLE_SECONDS: Final = 60.0  # a connection without a request is closed then
_DRAIN_SECONDS: Final = 5.0


class Searcher(Protocol):
    """What is served: `Bm25Retriever` and `IndexRetriever` are such. Several threads search at once."""

    @property
    def num_passages(self) -> int: ...

    def search(self, queries: Sequence[str], top_k: int) -> list[list[dict[str, Any]]]: ...


def serve(retriever: Searcher, name: str, host: str, port: int, say: Callable[[str], None]) -> None:
    """Build or map the index, say where it listens, and serve until SIGINT or SIGTERM.

    Args:
        name: of what is searched, for people.

    Raises:
        UsageError: the corpus or the index can't be read, or the address can't be listened on.
    """
    num_passages = retriever.num_passages
    try:
        server = RetrieverServer((host, port), retriever)
    except (OSError, OverflowError) as error:
        raise UsageError(f"can't listen on {host} port {port}: {error}; choose another --port") from error
    if not _is_loopback(server.server_address[0]):
        sys.stderr.write(f"warning: whoever can reach {host} can search this corpus, without a password\n")
    stop_on_signals(server)
    say(f"serving {num_passages:,} passages of {name} at {server.url}/retrieve; Ctrl-C ends it")
    server.serve_forever(poll_interval=0.1)
    server.drain()
    server.server_close()
    say(f"stopped; {server.num_queries:,} queries were answered")


def stop_on_signals(server: RetrieverServer) -> None:
    """End `serve_forever` on the first SIGINT or SIGTERM."""

    def stop(number: int, frame: object) -> None:
        # shutdown waits for serve_forever, which runs in this very thread
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


class RetrieverServer(ThreadingHTTPServer):
    """The HTTP server over one index. `url` is where it listens; port 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], retriever: Searcher):
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.retriever = retriever
        self.num_queries = 0
        self._open_requests = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def answer(self, body: Any) -> Any:
        """The reply to a decoded request."""
        search = decode_request(body)
        found = self.retriever.search(search.queries, search.top_k)
        with self._lock:
            self.num_queries += len(search.queries)
        return encode_reply(found, search)

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Around a request, from its first byte to the last one of its reply."""
        with self._lock:
            self._open_requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._open_requests -= 1

    def drain(self) -> None:
        """Wait until open requests are answered, a few seconds at most."""
        end = time.monotonic() + _DRAIN_SECONDS
        while self._open_requests and time.monotonic() < end:
            time.sleep(0.02)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    server_version = "cadre-retriever"
    error_content_type = "application/json"  # of what is not even HTTP
    error_message_format = '{"error": "HTTP %(code)d"}\n'
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: RetrieverServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, {"status": "ok", "passages": self.server.retriever.num_passages})
        elif self.path.rstrip("/") in PATHS:
            self._reply(405, {"error": f"POST a JSON object to {self.path}"})
        else:
            self._reply(404, {"error": f"no such path: {self.path}; POST to {' or '.join(PATHS)}"})

    def do_POST(self) -> None:
        with self.server.open_request():
            self._post()

    def _post(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True  # where this request ends is not known
            self._reply(411, {"error": "the request has no Content-Length"})
        elif int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._reply(413, {"error": f"the request has {length} bytes, more than {MAX_BODY_BYTES}"})
        else:
            self._reply(*self._answer(self.rfile.read(int(length))))

    def _answer(self, body: bytes) -> tuple[int, Any]:
        if self.path.rstrip("/") not in PATHS:
            return 404, {"error": f"no such path: {self.path}; POST to {' or '.join(PATHS)}"}
        try:
            return 200, self.server.answer(json.loads(body))
        except ProtocolError as error:
            return 400, {"error": str(error)}
        except (ValueError, RecursionError) as error:
            return 400, {"error": f"the request is not JSON: {error}"}
        except Exception as error:  # said to the client, who counts it as an outage
            return 500, {"error": f"{type(error).__name__}: {error}"}

    def _reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for each of a million searches helps nobody."""


def _is_loopback(host: object) -> bool:
    return str(host).startswith("127.") or host == "::1"
