"""One retrieval server as the pool sees it: what it understands, how it is, and what its replies mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from workflows.errors import ToolRefusal, WorkflowError
from workflows.tools.retriever_protocol import PATHS, Form, ProtocolError, decode_reply

if TYPE_CHECKING:
    import httpx

MAX_PAUSE_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 64  # to one server
_REFUSED: Final = frozenset({400, 413, 422})
_BUSY: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Session:
    """Connections and locks, which belong to one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    slots: dict[str, asyncio.Semaphore]
    probing: dict[str, asyncio.Lock]

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, urls: Sequence[str]) -> Session:
        import httpx

        client = httpx.AsyncClient(
            # common servers close an idle connection after 5 s; ours are gone before
            limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0),
            timeout=None,  # `_timed` bounds the whole attempt
            trust_env=False,
            verify=any(url.startswith("https:") for url in urls),  # else certificates are loaded for nothing
            follow_redirects=False,
        )
        slots = {url: asyncio.Semaphore(_MAX_CONNECTIONS) for url in urls}
        return cls(loop, client, slots, {url: asyncio.Lock() for url in urls})


@dataclass(slots=True)
class Endpoint:
    """One server: what it understands, and how it is. Times are by the monotonic clock."""

    url: str
    candidates: tuple[str, ...]
    understands: tuple[str, Form] | None = None
    failures: int = 0  # in a row
    failed_at: float = 0.0
    outage: Outage | None = None  # the last one
    closed_until: float = 0.0
    in_flight: int = 0
    last_asked: float = 0.0

    def __enter__(self) -> None:
        self.in_flight += 1

    def __exit__(self, *exception: object) -> None:
        self.in_flight -= 1

    def failed(self, outage: Outage, began: float, pause: Callable[[int], float]) -> None:
        """Of requests that were under way together, the first failure counts: it is one outage."""
        if not self.failures or began >= self.failed_at:
            self.failures += 1
            self.failed_at = time.monotonic()
            seconds = max(pause(self.failures), min(outage.retry_after, MAX_PAUSE_SECONDS))
            self.closed_until = self.failed_at + seconds
        self.outage = outage


class Outage(Exception):
    """A server does not serve now."""

    def __init__(self, cause: str, retry_after: float = 0.0):
        super().__init__(cause)
        self.retry_after = retry_after


class Misconfigured(Outage):
    """A server answers that this is not the way to ask it."""


class Nonsense(Outage):
    """A server answers something else than documents."""


def documents_of(reply: httpx.Response, url: str, num_queries: int) -> list[list[dict[str, Any]]]:
    status = reply.status_code
    if status in _BUSY or status >= 500:
        after = reply.headers.get("retry-after", "")
        raise Outage(f"{status} at {url}: {words_of(reply)}", float(after) if after.isdecimal() else 0.0)
    if status in _REFUSED:
        raise ToolRefusal(f"the retrieval server refuses the query ({status}): {words_of(reply)}")
    if status != 200:
        raise Misconfigured(f"{status} at {url}: {words_of(reply)}")
    try:
        return decode_reply(reply.json(), num_queries)
    except (ValueError, RecursionError) as error:  # no JSON, or none of the protocol's
        what = str(error) if isinstance(error, ProtocolError) else f"no JSON: {words_of(reply)}"
        raise Nonsense(f"{what} (at {url})") from error


def words_of(reply: httpx.Response) -> str:
    moved = reply.headers.get("location")
    return f"moved to {moved}"[:200] if moved else " ".join(reply.text.split())[:200] or reply.reason_phrase


def candidates_of(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WorkflowError(f"retriever URL {url!r} must begin with http:// or https:// and name a host")
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return [*(base + other for other in PATHS), f"{base}/"]
    if path.endswith("/retrieve"):
        return [url, *(base + path.removesuffix("/retrieve") + other for other in PATHS[1:])]
    return [url]
