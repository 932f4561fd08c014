"""A model behind an OpenAI-compatible API (a vLLM server, a provider, a gateway): asked, never trained.

There is no engine actor: each player holds an `OpenAIEngine`, which pickles, and asks the server itself.
An attempt is one request; repeating it is the player's business. A server that says `Retry-After` is
left alone for so long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from stages.engines.base import EngineSpec
from stages.engines.kind import EngineKind
from stages.engines.openai.endpoint import PACE, Endpoint, read_endpoint
from stages.engines.openai.protocol import (
    NotAnAnswer,
    model_names,
    read_answer,
    request_body,
    retry_after,
    words_of,
)
from stages.weights.chat import ChatRenderer
from stages.weights.resolve import resolve_checkpoint
from workflows.engine import AnyEngine, ChatReply, Message, Sampling
from workflows.errors import InfraError, RunFailed, UsageError
from workflows.playing.attempts import CallFailed, attempt

if TYPE_CHECKING:
    import httpx

_BUSY: Final = frozenset({408, 409, 425, 429})  # and all from 500 on: worth a retry
_NO_LIST: Final = frozenset({404, 405, 501})  # a server without /models
_LONGEST_PAUSE: Final = (
    60.0  # seconds that a Retry-After can ask for: a longer one is best reported as a failure
)
_MAX_WORDS: Final = 500  # characters of a server's words that an error keeps
_HELLO: Final = Message(role="user", content="Say hello.")
_REACH_ATTEMPTS: Final = 3


class OpenAIEngine(EngineKind):
    """One model behind an API as a player sees it; implements `workflows.engine.ChatEngine`.

    Args:
        spec: `options` are those of `Endpoint`; `checkpoint` is the folder of its tokenizer, or empty.
        players: how many processes share the limits on requests.

    Raises:
        UsageError: options that can't work.
    """

    trainable = False
    needs_checkpoint = False
    is_remote = True
    pace_options = PACE
    policy_version = 0

    def __init__(self, spec: EngineSpec, *, model_id: str, players: int = 1) -> None:
        self.spec = spec
        self.model_id = model_id
        self.base_id = spec.base_id
        self.max_model_len = spec.max_model_len
        self.players = players
        self.endpoint = endpoint_of(spec)
        self._line: _Line | None = None
        self._key: str | None = None

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        endpoint_of(spec)

    @classmethod
    def check_here(cls, spec: EngineSpec) -> None:
        endpoint_of(spec).key()

    @classmethod
    def check_answers(cls, spec: EngineSpec) -> None:
        endpoint_of(spec).check_answers()

    @classmethod
    def tokenizer_folder(cls, options: Mapping[str, Any], who: str) -> str:
        return tokenizer_folder(options, who)

    @classmethod
    def weights_name(cls, options: Mapping[str, Any]) -> str | None:
        return f"openai:{options.get('model')}"

    @classmethod
    def described(cls, spec: EngineSpec) -> str | None:
        return f"{endpoint_of(spec).described}; through its API, never trained"

    @classmethod
    def for_player(cls, spec: EngineSpec, *, model_id: str, players: int) -> AnyEngine:
        return cls(spec, model_id=model_id, players=players)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.spec, self.model_id, self.players))  # connections are made where it is used

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the chat as a prompt.

        Exact with `tokenizer`. Without, an estimate: one for every three bytes, rounded up, and four for
        each message. English prose and Python have 3.3 to 4.9 bytes a token with SmolLM2's tokenizer,
        digits 1.2, Japanese 1.6.
        """
        if self._renderer is not None:
            return len(self._renderer.render(messages))
        size = sum(len(message["content"].encode("utf-8", "replace")) for message in messages)
        return -(-size // 3) + 4 * len(messages)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> ChatReply:
        """One request. A stop string is not part of the text: these APIs cut it off.

        Raises:
            InfraError: no connection, no answer in time, status 408, 409, 429 or 5xx, or an answer that
                is none.
            UsageError: the server refuses the request with another status, or the key is missing.
        """
        arrived = time.monotonic()
        line = self._open_line()
        async with line.turn():
            started_after = time.monotonic() - arrived
            answer = await self._request(
                line, "chat/completions", request_body(self.endpoint, messages, sampling)
            )
        try:
            return read_answer(answer, started_after)
        except NotAnAnswer as error:
            raise InfraError(self._message(str(error))) from None

    async def reach(self) -> None:
        """See that the server answers, takes the key and knows the model: one error before any episode.

        The list of models is asked for. A server that has none, or lists others only, is asked a short
        question instead, since gateways know more names than they list.

        Raises:
            RunFailed: it does not.
        """

        async def ask(number: int) -> None:
            try:
                names = model_names(await self._request(self._open_line(), "models"))
            except _Unknown:
                names = []
            if self.endpoint.model not in names:
                await self.chat([_HELLO], Sampling(max_tokens=16))

        try:
            await attempt(
                ask,
                attempts=_REACH_ATTEMPTS,
                timeout_seconds=_REACH_ATTEMPTS * 2 * self.endpoint.timeout_seconds,
                pause=lambda number: 0.3 * number,
                grace_seconds=5.0,
            )
        except CallFailed as error:
            raise RunFailed(f"model {self.model_id!r} can't be asked: {error}") from None

    async def close(self) -> None:
        """Close its connections; they open again when it is asked."""
        if self._line is not None:
            await self._line.http.aclose()
            self._line = None

    async def _request(self, line: _Line, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of an answer with a good status; without a body, of a GET."""
        import httpx

        try:
            async with asyncio.timeout(self.endpoint.timeout_seconds):
                response = await line.http.request("GET" if body is None else "POST", path, json=body)
        except TimeoutError:
            seconds = self.endpoint.timeout_seconds
            raise InfraError(self._message(f"no answer within timeout_seconds = {seconds:g}")) from None
        except httpx.HTTPError as error:
            raise InfraError(self._message(f"{type(error).__name__}: {error}")) from None
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if response.is_success:
            if answer is None:
                message = self._message(f"the answer is not JSON: {response.text}")
                raise _Unknown(message) if body is None else InfraError(message)
            return answer
        raise self._refused(line, response, words_of(answer or response.text))

    def _refused(self, line: _Line, response: httpx.Response, words: str) -> Exception:
        status = response.status_code
        message = self._message(f"status {status}: {words}")
        if response.request.method == "GET" and status in _NO_LIST:
            return _Unknown(message)
        if status in _BUSY or status >= 500:
            line.leave_alone(retry_after(response.headers.get("retry-after"), time.time()))
            return InfraError(message)
        return UsageError(f"{message}; {self._remedy(status)}")

    def _remedy(self, status: int) -> str:
        env = self.endpoint.api_key_env
        if status in (401, 403):
            return (
                f"check the key in {env}" if env else 'it wants a key: name its variable with "api_key_env"'
            )
        if status == 404 or status < 400:
            return f"check base_url (it ends in /v1 on most servers) and model = {self.endpoint.model!r}"
        return "check the sampling of the role, and max_tokens_key, omit and extra of engine_options"

    def _message(self, what: str) -> str:
        return f"API of model {self.model_id!r} at {self.endpoint.base_url}: {self._safe(what)}"

    def _safe(self, text: str) -> str:
        """A text without the key, which servers like to repeat, in one line of bounded length."""
        text = text.replace(self._key, "***") if self._key else text
        return " ".join(text.split())[:_MAX_WORDS]

    def _open_line(self) -> _Line:
        """The connections of this process and event loop."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            self._key = self.endpoint.key()
            self._line = _Line(self.endpoint, self._key, self.players, loop)
        return self._line

    @cached_property
    def _renderer(self) -> ChatRenderer | None:
        return ChatRenderer(self.spec.checkpoint) if self.endpoint.tokenizer else None


class _Unknown(UsageError):
    """The server has no list of models."""


class _Line:
    """Connections, and whose turn it is to send: so many at once, and not faster than so often."""

    def __init__(
        self, endpoint: Endpoint, key: str | None, players: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        import httpx

        self.loop = loop
        self.http = httpx.AsyncClient(
            base_url=endpoint.base_url + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=None,  # each request has its own, for all of it
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=endpoint.max_concurrency),
            follow_redirects=False,  # a key goes to nobody whom the settings do not name
        )
        self._slots = asyncio.Semaphore(max(1, endpoint.max_concurrency // players))
        per_minute = endpoint.requests_per_minute
        self._interval = 60.0 * players / per_minute if per_minute else 0.0
        self._free_at = 0.0  # by the loop's clock: when the next request may be sent

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self._slots:
            now = self.loop.time()
            at = max(now, self._free_at)
            self._free_at = at + self._interval
            if at > now:
                await asyncio.sleep(at - now)
            yield

    def leave_alone(self, seconds: float) -> None:
        self._free_at = max(self._free_at, self.loop.time() + min(seconds, _LONGEST_PAUSE))


def endpoint_of(spec: EngineSpec) -> Endpoint:
    return read_endpoint(spec.options, f"models.{spec.base_id}")


def tokenizer_folder(options: Mapping[str, Any], who: str) -> str:
    """The folder of the tokenizer that counts prompts, or nothing where they are estimated.

    Raises:
        UsageError: options that can't work, or a checkpoint without tokenizer or chat template.
    """
    name = read_endpoint(options, who).tokenizer
    if name is None:
        return ""
    folder = resolve_checkpoint(name)
    if ChatRenderer(folder).chat_template is None:
        raise UsageError(
            f"{who}: tokenizer {name!r} has no chat template, so it can't count the tokens of a chat; name "
            "the model's own checkpoint, or leave tokenizer out for an estimate"
        )
    return folder


def _rebuilt(spec: EngineSpec, model_id: str, players: int) -> OpenAIEngine:
    return OpenAIEngine(spec, model_id=model_id, players=players)
