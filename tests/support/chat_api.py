"""An OpenAI-compatible API on loopback that answers what a test wants, and plays against it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stages.engines.base import EngineSpec
from stages.engines.openai.engine import OpenAIEngine
from tests.support.environment import API_KEY as KEY
from workflows.engine import ChatReply, Message, Sampling
from workflows.graph import LlmStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import Tag
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.prompts import Trim
from workflows.roles import Role, RoleSettings

CHAT = [Message(role="user", content="Which?")]


LIMITS = PlayLimits(backoff_seconds=0.0)


def said(text: Any = "<a>yes</a>", reason: Any = "stop", **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"choices": [choice], "usage": usage, **more}


Answer = tuple[int, Mapping[str, str], Any]  # status, headers, body: JSON, or a text as it is


class Api:
    """A server that gives `answers` in turn, then what `reply` says; it keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.reply: Callable[[dict[str, Any]], Any] = lambda body: said()
        self.models: Answer = (200, {}, {"data": [{"id": "m"}]})
        self.delay = 0.0
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def stop(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any], key: str | None) -> Answer:
        with self._lock:
            self.asked.append(body)
            self.keys.append(key)
            self.times.append(time.monotonic())
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            planned = self.answers.pop(0) if self.answers else None
        self._closing.wait(self.delay)
        with self._lock:
            self._at_once -= 1
        return planned or (200, {}, self.reply(body))

    def _handler(api) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(*(api.models if self.path == "/v1/models" else (404, {}, {})))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    self._send(404, {}, {"detail": "Not Found"})
                    return
                self._send(*api.answer(body, self.headers["Authorization"]))

            def _send(self, status: int, headers: Mapping[str, str], body: Any) -> None:
                text = body if isinstance(body, str) else json.dumps(body)
                data = text.replace("{key}", str(self.headers["Authorization"])).encode()
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(data))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True  # who asked has gone

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the API in the environment."""
    monkeypatch.setenv("TEST_API_KEY", KEY)


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.stop()


def engine(url: str, *, players: int = 1, max_model_len: int = 400, **options: Any) -> OpenAIEngine:
    given = {"base_url": url, "model": "m", "api_key_env": "TEST_API_KEY", **options}
    spec = EngineSpec("judge", "openai", "", max_model_len=max_model_len, options=given)
    return OpenAIEngine(spec, model_id="judge", players=players)


JUDGE = ModelMap({"judge": Model("judge", "judge", "", trainable=False)}, {"sayer": "judge"})


SAYER = Role("sayer", "Lines: {lines}\nSay it.", Tag("a"), trim=(Trim("lines"),), max_response_tokens=50)


def play(
    asked: OpenAIEngine, lines: list[str] | None = None, role: RoleSettings | None = None, samples: int = 1
) -> list[Played]:
    """Episodes of one question to the engine, at the same time."""
    workflow = Workflow("w", [SAYER], [LlmStep("say", "sayer", {"lines": "task.lines"})])
    player = Player(workflow, {"judge": asked}, JUDGE, {"sayer": role or RoleSettings()}, LIMITS, 0)
    task = {"task_id": "t", "inputs": {"lines": lines or ["one"]}}

    async def all_of_them() -> list[Played]:
        played = await asyncio.gather(*(player.play(task, iteration=0, sample=s) for s in range(samples)))
        await asked.close()
        return played

    return asyncio.run(all_of_them())


def chat(asked: OpenAIEngine, sampling: Sampling | None = None) -> ChatReply:
    async def once() -> ChatReply:
        try:
            return await asked.chat(CHAT, sampling or Sampling(max_tokens=9))
        finally:
            await asked.close()

    return asyncio.run(once())


def with_api(scripted: Callable[..., dict[str, Any]], url: str, **judge: Any) -> dict[str, Any]:
    options = {"base_url": url, "model": "m", "api_key_env": "TEST_API_KEY"}
    judge = {"engine": "openai", "train": False, "engine_options": options, "max_model_len": 2048, **judge}
    return scripted(
        models={"judge": judge},
        roles={"answerer": {"model": "judge"}, **{r: {"model": "team"} for r in ("decomposer", "reader")}},
    )


Scripted = Callable[..., dict[str, Any]]
