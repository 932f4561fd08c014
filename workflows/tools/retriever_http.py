"""Retrieval from a pool of HTTP servers.

Two kinds of failures are kept apart. A server that can't be reached, is busy, or answers nonsense is an
outage: another server is asked, and when all attempts are used up `InfraError` says what each answered. It
never looks like a search that found nothing. A server that understands and refuses is not an outage: it is
asked once.

Left out: a cache, authentication, and proxies of the environment (the pool connects directly).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from workflows.errors import InfraError, ToolRefusal, WorkflowError
from workflows.hooks import ToolHooks
from workflows.tools.retriever_protocol import (
    DEFAULT_TOP_K,
    FORMS,
    MAX_QUERY_CHARACTERS,
    checked_top_k,
    encode_request,
    query_of,
)
from workflows.tools.retriever_server import (
    MAX_PAUSE_SECONDS,
    Endpoint,
    Misconfigured,
    Nonsense,
    Outage,
    Session,
    candidates_of,
    documents_of,
    words_of,
)
from workflows.trajectory import clean_text

if TYPE_CHECKING:
    import httpx

_NOT_THIS_FORM: Final = frozenset({400, 404, 405, 415, 422, 501})  # while it is not known which one works


class HttpRetriever(ToolHooks):
    """A tool: `{"query": str, "top_k": int}` to `{"documents": [...], "endpoint": url, "attempts": n}`.

    A document has `id`, `title`, `text`, and a `score` where the server gives one; best first, at most
    `top_k`. `attempts` counts the servers that were asked for this answer.

    Servers with fewer open requests are asked first. One that fails is left alone for `backoff_seconds`
    times 1, 2, 4, … (at most 10 s, with a jitter of ±50 %), then one request tries it again, and tells all
    that wait for it. Where no server has answered for `attempts` tries, a call tries once, and fails soon.
    What a server understands (path and form of requests, see `retriever_protocol`) is found out once and
    remembered.

    Args:
        urls: of the servers. A path of its own is tried first; without one, and beside `/retrieve`, also
            `/retrieve`, `/query`, `/search` and the bare URL.
        timeout_seconds: of one attempt, from sending to the last byte.
        attempts: at most so many servers, or the same one so often, are asked for one answer.

    Raises:
        WorkflowError: no URL, or one that is not http, or an option out of range.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_seconds: float = 10.0,
        attempts: int = 5,
        backoff_seconds: float = 0.5,
    ) -> None:
        if isinstance(urls, str) or not urls or not all(isinstance(url, str) for url in urls):
            raise WorkflowError(f"the retriever needs a list of URLs, got {urls!r}")
        if len(set(urls)) < len(urls):
            raise WorkflowError(f"the retriever's urls name one server twice: {', '.join(urls)}")
        seconds = (timeout_seconds, backoff_seconds)
        if any(isinstance(s, bool) or not isinstance(s, int | float) for s in seconds) or not (
            timeout_seconds > 0 and backoff_seconds >= 0
        ):
            raise WorkflowError(
                "the retriever's timeout_seconds must be above 0 and backoff_seconds at least 0; "
                f"got {timeout_seconds!r} and {backoff_seconds!r}"
            )
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise WorkflowError(f"the retriever's attempts must be a whole number above 0, got {attempts!r}")
        self.urls = tuple(urls)
        self.timeout_seconds = timeout_seconds
        self.attempts = attempts
        self.backoff_seconds = backoff_seconds
        self._endpoints = [Endpoint(url, tuple(candidates_of(url))) for url in self.urls]
        self._session: Session | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(
            HttpRetriever,
            self.urls,
            timeout_seconds=self.timeout_seconds,
            attempts=self.attempts,
            backoff_seconds=self.backoff_seconds,
        ), ()

    def check_ready(self) -> None:
        """Ask every server for something.

        Raises:
            WorkflowError: none of them answers.
        """
        causes: list[str] = []

        def ask_all() -> None:
            causes.extend(asyncio.run(self._causes()))

        thread = threading.Thread(target=ask_all)  # whether or not this thread runs an event loop
        thread.start()
        thread.join()
        if len(causes) == len(self.urls):
            raise WorkflowError(
                f"no retrieval server answers: {'; '.join(causes)}. Start one, or change urls"
            )

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Search for one query; `top_k` is 4 where the request has none.

        Raises:
            ToolRefusal: the query is missing, not a text, or blank, or a server refuses it.
            WorkflowError: `top_k` is not a whole number of at least 1, or a server says that it is asked
                wrongly (no permission, for example).
            InfraError: no server answered.
        """
        query, top_k = query_of(request)
        (documents,), endpoint, attempts = await self._answer([query], top_k)
        return {"documents": documents, "endpoint": endpoint, "attempts": attempts}

    async def search(self, queries: Sequence[str], top_k: int = DEFAULT_TOP_K) -> list[list[dict[str, Any]]]:
        """The documents of each query, in the order of the queries; none for a blank one. Raises as above."""
        asked = [i for i, query in enumerate(queries) if query.strip()]
        results: list[list[dict[str, Any]]] = [[] for _ in queries]
        if asked:
            documents, _, _ = await self._answer([queries[i] for i in asked], top_k)
            for i, hits in zip(asked, documents, strict=True):
                results[i] = hits
        return results

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._session is not None and self._session.loop is asyncio.get_running_loop():
            await self._session.client.aclose()
        self._session = None

    # --- one answer -----------------------------------------------------------------------------------

    async def _answer(
        self, queries: Sequence[str], top_k: int
    ) -> tuple[list[list[dict[str, Any]]], str, int]:
        checked_top_k(top_k)
        sent = [clean_text(query[:MAX_QUERY_CHARACTERS]) for query in queries]
        outages: dict[str, Outage] = {}
        for number in range(1, self.attempts + 1):
            endpoint = self._choose()
            try:
                with endpoint:
                    results = await self._try(endpoint, sent, top_k)
            except Outage as outage:
                outages[endpoint.url] = outage
                if all(e.failures >= self.attempts for e in self._endpoints):
                    break  # down for long: each call looks once, and fails soon
            else:
                return [documents[:top_k] for documents in results], endpoint.url, number
        causes = "; ".join(f"{url}: {outage}" for url, outage in outages.items())
        if all(isinstance(outage, Misconfigured) for outage in outages.values()):
            raise WorkflowError(f"retrieval servers refuse to be asked: {causes}; check urls and access")
        raise InfraError(f"no retrieval server answered in {number} attempts: {causes}")

    def _choose(self) -> Endpoint:
        """The open server with the fewest requests, or the one that opens first."""
        now = time.monotonic()

        def rank(endpoint: Endpoint) -> tuple[float, ...]:
            # one that failed is tried by one request, while the others go elsewhere
            probing = endpoint.failures > 0 and endpoint.in_flight > 0
            return (probing, max(0.0, endpoint.closed_until - now), endpoint.in_flight, endpoint.last_asked)

        chosen = min(self._endpoints, key=rank)
        chosen.last_asked = now
        return chosen

    async def _try(self, endpoint: Endpoint, queries: list[str], top_k: int) -> list[list[dict[str, Any]]]:
        came = time.monotonic()
        session = self._open_session()
        if endpoint.failures:
            async with session.probing[endpoint.url]:
                if endpoint.failed_at > came and endpoint.outage is not None:
                    raise endpoint.outage  # who tried it meanwhile has found out for all who wait
                if endpoint.failures:
                    await asyncio.sleep(max(0.0, endpoint.closed_until - time.monotonic()))
                    return await self._timed(endpoint, queries, top_k)
        # the wait for a free connection is nobody's fault and counts against no limit
        async with session.slots[endpoint.url]:
            return await self._timed(endpoint, queries, top_k)

    async def _timed(self, endpoint: Endpoint, queries: list[str], top_k: int) -> list[list[dict[str, Any]]]:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                results = await self._ask(endpoint, queries, top_k)
        except TimeoutError as error:
            outage = Outage(f"no reply within {self.timeout_seconds:g} s")
            endpoint.failed(outage, began, self._pause)
            raise outage from error
        except Outage as outage:
            endpoint.failed(outage, began, self._pause)
            raise
        except ToolRefusal:
            endpoint.failures = 0  # it is well enough to refuse
            raise
        endpoint.failures = 0
        return results

    def _pause(self, failures: int) -> float:
        # drawn, not derived: several processes must not come back in step, and no result depends on it
        return min(MAX_PAUSE_SECONDS, self.backoff_seconds * 2 ** min(failures - 1, 16)) * random.uniform(
            0.5, 1.5
        )

    async def _ask(self, endpoint: Endpoint, queries: list[str], top_k: int) -> list[list[dict[str, Any]]]:
        if endpoint.understands is not None:
            url, form = endpoint.understands
            reply = await self._post(url, encode_request(queries, top_k, form))
            if reply.status_code != 404:
                return documents_of(reply, url, len(queries))
            endpoint.understands = None  # the server was changed: find out again
        problems: list[Outage] = []  # the least telling first
        for url in endpoint.candidates:
            for form in FORMS:
                reply = await self._post(url, encode_request(queries, top_k, form))
                if reply.status_code in _NOT_THIS_FORM:
                    problem: Outage = Misconfigured(f"{reply.status_code} at {url}: {words_of(reply)}")
                    problems.insert(0 if reply.status_code == 404 else len(problems), problem)
                elif reply.status_code == 500:  # some servers break on a form that they do not know
                    problems.append(Outage(f"500 at {url}: {words_of(reply)}"))
                else:
                    try:
                        results = documents_of(reply, url, len(queries))
                    except Nonsense as nonsense:
                        problems.append(nonsense)
                    else:
                        endpoint.understands = (url, form)
                        return results
        raise problems[-1]

    async def _post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        import httpx

        client = self._open_session().client
        try:
            try:
                return await client.post(url, json=body)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # a kept connection that the server had closed meanwhile; a search may be asked twice
                return await client.post(url, json=body)
        except httpx.HTTPError as error:
            raise Outage(f"{type(error).__name__}: {error}") from error

    def _open_session(self) -> Session:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.loop is not loop:
            self._session = Session.open(loop, self.urls)
        return self._session

    async def _causes(self) -> list[str]:
        async def cause(endpoint: Endpoint) -> str | None:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    await self._ask(endpoint, ["test"], 1)
            except (Outage, ToolRefusal, TimeoutError) as error:
                return f"{endpoint.url}: {str(error) or f'no reply within {self.timeout_seconds:g} s'}"
            return None

        try:
            causes = await asyncio.gather(*map(cause, self._endpoints))
        finally:
            await self.aclose()
        return [c for c in causes if c is not None]
