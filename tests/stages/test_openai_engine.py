"""A role behind an OpenAI-compatible API, against real servers on loopback: good ones and bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli.check import key_problem, report, report_lines
from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from stages.engines.base import EngineSpec
from stages.engines.openai.endpoint import read_endpoint
from stages.engines.openai.engine import OpenAIEngine
from stages.engines.openai.protocol import NotAnAnswer, model_names, read_answer, retry_after, words_of
from stages.weights.chat import ChatRenderer
from workflows.engine import ChatReply, Message, Sampling
from workflows.errors import RunFailed, UsageError
from workflows.graph import LlmStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import Tag
from workflows.playing.play import Played, Player, PlayLimits
from workflows.prompts import Trim
from workflows.roles import Role, RoleSettings
from workflows.testing import echo_qa
from workflows.trajectory import EPISODES, TURNS, rows_to_table

KEY = "sk-a+b/c=9f8e7d6c5b4a"
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


@pytest.fixture(scope="module", autouse=True)
def _key(no_ray: None) -> Iterator[None]:
    """In the environment before Ray starts, whose processes inherit it: no Ray of files before this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_API_KEY", KEY)
        yield


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


# --- rows ---------------------------------------------------------------------------------------


def test_a_row_says_what_is_known_and_makes_up_nothing(api: Api) -> None:
    one, other = play(engine(api.url), samples=2)
    (turn,) = one.turns
    assert (turn["status"], turn["response_text"], turn["parsed"]) == ("ok", "<a>yes</a>", '"yes"')
    unknown = ("prompt_token_ids", "response_token_ids", "behaviour_logprobs", "logprobs_mode")
    assert all(turn[name] is None for name in unknown)
    counts = ("num_prompt_tokens", "num_response_tokens", "num_cached_tokens")
    assert [turn[c] for c in counts] == [7, 5, 2]
    assert (one.episode["num_prompt_tokens"], one.episode["num_response_tokens"]) == (7, 5)
    assert turn["trainable"] is False
    assert json.loads(turn["messages"]) == api.asked[0]["messages"]
    assert turn["context_hash"] == other.turns[0]["context_hash"]
    assert turn["queued_at"] <= turn["started_at"] <= turn["ended_at"]
    rows_to_table(one.turns, TURNS)
    rows_to_table([one.episode], EPISODES)


def test_contexts_differ_where_messages_do(api: Api) -> None:
    one, other = (play(engine(api.url), [text])[0].turns[0]["context_hash"] for text in ("one", "two"))
    assert one != other


@pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": "7", "completion_tokens": -1}])
def test_counts_that_no_server_tells_stay_unknown(api: Api, usage: Any) -> None:
    api.reply = lambda body: said(usage=usage)
    (played,) = play(engine(api.url))
    assert played.turns[0]["num_prompt_tokens"] is played.turns[0]["num_response_tokens"] is None
    assert played.episode["num_prompt_tokens"] == 0


# --- what is sent -------------------------------------------------------------------------------


def test_a_role_s_sampling_is_what_the_server_gets(api: Api) -> None:
    role = RoleSettings(temperature=0.3, top_p=0.9, stop=("END",), top_k=4)
    play(engine(api.url), role=role, samples=2)
    for body in api.asked:
        assert (body["model"], body["max_tokens"]) == ("m", 50)
        assert (body["temperature"], body["top_p"], body["stop"], body["top_k"]) == (0.3, 0.9, ["END"], 4)
        assert 0 <= body["seed"] < 2**31
    assert len({body["seed"] for body in api.asked}) == 2
    assert api.keys == [f"Bearer {KEY}"] * 2


def test_a_server_of_other_habits_gets_other_keys(api: Api) -> None:
    options = {
        "max_tokens_key": "max_completion_tokens",
        "omit": ["seed", "temperature"],
        "extra": {"x": [1]},
    }
    play(engine(api.url, **options))
    assert set(api.asked[0]) == {"model", "messages", "max_completion_tokens", "top_p", "x"}


def test_a_server_without_a_key_is_sent_none(api: Api) -> None:
    assert chat(engine(api.url, api_key_env=None)).text == "<a>yes</a>"
    assert api.keys == [None]


# --- what comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
def test_a_reply_at_the_limit_is_truncated(api: Api, reason: str) -> None:
    api.reply = lambda body: said("<a>ye", reason)
    (turn,) = play(engine(api.url))[0].turns
    assert (turn["status"], turn["finish_reason"]) == ("truncated", "length")


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ({"content": None}, "stop", ""),
        ({"content": None, "refusal": "I won't."}, "stop", "I won't."),
        ({"content": ""}, "content_filter", ""),
        ({"content": None, "tool_calls": [{"id": "c"}]}, "tool_calls", ""),
        ({}, None, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "x"}, {"text": "b"}]}, "eos", "ab"),
    ],
)
def test_a_reply_without_the_wanted_text_is_the_parser_s_to_judge(
    api: Api, message: dict[str, Any], reason: str | None, text: str
) -> None:
    api.reply = lambda body: {"choices": [{"message": message, "finish_reason": reason}]}
    (played,) = play(engine(api.url))
    (turn,) = played.turns
    assert (turn["status"], turn["response_text"], turn["attempts"]) == ("malformed", text, 1)
    assert turn["finish_reason"] == ("content_filter" if reason == "content_filter" else "stop")
    assert played.episode["status"] == "ok"


NO_ANSWERS = [
    "<html>gateway</html>",
    "",
    "[1]",
    {},
    {"choices": []},
    {"choices": [None]},
    {"choices": [{"finish_reason": "stop"}]},
    {"choices": [{"message": {"content": 3}}]},
    {"error": {"message": "upstream is down"}},
    said("half", "abort"),
    said("half", "error"),
]


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_an_answer_that_is_none_is_asked_for_again(api: Api, body: Any) -> None:
    api.answers = [(200, {}, body)]
    (turn,) = play(engine(api.url))[0].turns
    assert (turn["status"], turn["attempts"]) == ("ok", 2)


WORDS = ["choices", "message", "content", "finish_reason", "refusal", "text", "error", "data", "id"]
WORDS += ["usage", "prompt_tokens", "prompt_tokens_details"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(json_values)
def test_any_json_is_a_reply_or_no_answer(body: Any) -> None:
    with contextlib.suppress(NotAnAnswer):
        assert isinstance(read_answer(body, 0.0).text, str)
    assert all(isinstance(name, str) for name in model_names(body))
    assert "\n" not in words_of(body)


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_busy_or_broken_server_is_asked_again(api: Api, status: int) -> None:
    api.answers = [(status, {}, {"error": {"message": "not now"}})]
    (turn,) = play(engine(api.url))[0].turns
    assert (turn["status"], turn["attempts"], len(api.asked)) == ("ok", 2, 2)


def test_when_the_attempts_are_used_up_the_episode_is_not_the_policy_s(api: Api) -> None:
    api.answers = [(500, {}, {"error": {"message": "out of\nmemory"}})] * 9
    (played,) = play(engine(api.url))
    (turn,) = played.turns
    assert (turn["status"], turn["attempts"], len(api.asked)) == ("infra_error", 3, 3)
    assert "status 500: out of memory" in turn["status_detail"]
    assert (played.episode["status"], played.episode["num_prompt_tokens"]) == ("infra_error", 0)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (400, "sampling"),
        (401, "TEST_API_KEY"),
        (403, "TEST_API_KEY"),
        (404, "base_url"),
        (422, "omit"),
        (307, "base_url"),
    ],
)
def test_a_refusal_is_told_at_once_with_its_cause(api: Api, status: int, remedy: str) -> None:
    api.answers = [(status, {"Location": "/elsewhere"}, {"message": "no, because"})]
    (turn,) = play(engine(api.url))[0].turns
    assert (turn["status"], turn["attempts"], len(api.asked)) == ("infra_error", 1, 1)
    assert f"status {status}: no, because" in turn["status_detail"]
    assert remedy in turn["status_detail"]


@pytest.mark.parametrize("words", ["{key}", "x" * 490 + " {key}", {"error": {"message": "bad {key}"}}])
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
def test_the_key_is_nowhere_even_where_the_server_repeats_it(api: Api, status: int, words: Any) -> None:
    api.answers = [(status, {}, words)] * 3
    asked = engine(api.url)
    (played,) = play(asked)
    everything = json.dumps([played.turns, played.episode]) + repr(asked.endpoint)
    assert played.episode["status"] == "infra_error"
    assert api.keys[0] == f"Bearer {KEY}"
    for piece in (KEY, KEY[:8]):
        assert piece not in everything
    assert KEY.encode() not in pickle.dumps(asked)


def test_a_server_that_is_late_is_given_up(api: Api) -> None:
    api.delay = 5.0
    (turn,) = play(engine(api.url, timeout_seconds=0.1))[0].turns
    assert (turn["status"], turn["attempts"]) == ("infra_error", 3)
    assert "no answer within timeout_seconds = 0.1" in turn["status_detail"]


def test_a_server_that_is_not_there_is_named(api: Api) -> None:
    api.stop()
    (turn,) = play(engine(api.url))[0].turns
    assert (turn["status"], turn["attempts"]) == ("infra_error", 3)
    assert api.url in turn["status_detail"]


@pytest.mark.parametrize("key", [None, "", "  ", "two words", "schlüssel"])
def test_a_key_that_can_be_none_is_refused_by_its_variable(
    api: Api, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv("TEST_API_KEY")
    else:
        monkeypatch.setenv("TEST_API_KEY", key)
    with pytest.raises(UsageError, match="TEST_API_KEY") as error:
        chat(engine(api.url))
    assert not (key or "").strip() or str(key) not in str(error.value)
    assert not api.asked


def test_white_space_around_a_key_is_no_part_of_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", f" {KEY}\n")
    chat(engine(api.url))
    assert api.keys == [f"Bearer {KEY}"]


# --- pace ---------------------------------------------------------------------------------------


def test_no_request_comes_before_the_server_wants_it(api: Api) -> None:
    api.answers = [(429, {"Retry-After": "0.3"}, {})]
    (turn,) = play(engine(api.url))[0].turns
    first, second = api.times
    assert turn["status"] == "ok"
    assert second - first >= 0.3


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("2", 2), ("-1", 0), ("soon", 0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("nan", 0)],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float) -> None:
    assert retry_after(header, now=10.0) == seconds


def test_not_more_requests_at_once_than_the_players_may_have_together(api: Api) -> None:
    api.delay = 0.02
    played = play(engine(api.url, max_concurrency=6, players=2), samples=12)
    assert {p.episode["status"] for p in played} == {"ok"}
    assert 1 <= api.most_at_once <= 3


def test_not_faster_than_so_many_a_minute(api: Api) -> None:
    play(engine(api.url, requests_per_minute=1200), samples=4)
    assert api.times[-1] - api.times[0] >= 3 * 0.05 - 0.02  # their way to the server may differ


def test_an_engine_pickles_while_it_is_in_use_and_outlives_event_loops(api: Api) -> None:
    asked = engine(api.url)

    async def use() -> OpenAIEngine:
        await asked.chat(CHAT, Sampling(max_tokens=9))
        return pickle.loads(pickle.dumps(asked))  # type: ignore[no-any-return]

    again = asyncio.run(use())
    assert chat(again).text == chat(asked).text
    assert len(api.asked) == 3
    assert again.endpoint == asked.endpoint


# --- prompts that fit ---------------------------------------------------------------------------


def test_a_prompt_is_trimmed_by_the_estimate(api: Api) -> None:
    asked = engine(api.url, max_model_len=150)
    (turn,) = play(asked, ["a line of words"] * 40)[0].turns
    assert turn["status"] == "ok"
    assert json.loads(turn["cut"])["lines"]["items"] > 0
    assert asked.count_tokens(json.loads(turn["messages"])) <= 100
    assert turn["num_prompt_tokens"] == 7  # the server's number, not the estimate


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=9), max_size=3), st.text(max_size=9))
def test_the_estimate_never_falls_when_something_is_said_more(texts: list[str], more: str) -> None:
    asked = engine("http://host/v1")
    chat = [Message(role="user", content=text) for text in texts]
    longer = [Message(role="user", content=text + more) for text in texts]
    assert asked.count_tokens(chat) <= asked.count_tokens(longer)
    assert asked.count_tokens(chat) < asked.count_tokens([*chat, Message(role="assistant", content=more)])


def test_with_a_tokenizer_the_count_is_exact(api: Api, tiny: str) -> None:
    options = {"base_url": api.url, "model": "m", "tokenizer": "tiny"}
    spec = EngineSpec("judge", "openai", tiny, options=options)
    asked = pickle.loads(pickle.dumps(OpenAIEngine(spec, model_id="judge")))
    assert asked.count_tokens(CHAT) == len(ChatRenderer(tiny).render(CHAT))


# --- before the first episode -------------------------------------------------------------------


def reach(asked: OpenAIEngine) -> None:
    async def once() -> None:
        try:
            await asked.reach()
        finally:
            await asked.close()

    asyncio.run(once())


def test_a_model_that_is_listed_is_asked_nothing(api: Api) -> None:
    reach(engine(api.url))
    assert not api.asked


NO_LIST = [{"data": [{"id": "another"}]}, {"object": "list"}, "<html>home</html>"]


@pytest.mark.parametrize("models", [(404, {}, {}), (405, {}, ""), *((200, {}, body) for body in NO_LIST)])
def test_a_model_that_is_not_listed_is_asked_a_question(api: Api, models: Answer) -> None:
    api.models = models
    reach(engine(api.url))
    assert len(api.asked) == 1
    api.answers = [(404, {}, {"error": {"message": "no model m"}})]
    with pytest.raises(RunFailed, match="no model m"):
        reach(engine(api.url))


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_can_t_be_used_is_one_error_without_the_key(api: Api, status: int) -> None:
    api.models = (status, {}, {"error": {"message": "key {key} is bad"}})
    with pytest.raises(RunFailed, match=f"model 'judge' can't be asked.*status {status}") as error:
        reach(engine(api.url))
    assert KEY not in str(error.value)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base_url": None}, "needs base_url"),
        ({"base_url": "localhost:8000"}, "must be an address"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "must be an address"),
        ({"base_url": f"http://host/v1?key={KEY}"}, "must be an address"),
        ({"base_url": "http://host:99999/v1"}, "must be an address"),
        ({"model": ""}, "must be the name of a model"),
        ({"api_key": KEY}, "keys are no settings"),
        ({"api_key_env": KEY}, "not the key itself"),
        ({"extra": {"api-key": KEY}}, "keys to the environment"),
        ({"extra": {"temperature": 0}}, "sampling belongs to the roles"),
        ({"omit": ["max_tokens"]}, "a list of some of"),
        ({"omit": "seed"}, "a list of some of"),
        ({"timeout_seconds": 0}, "above 0"),
        ({"timeout_seconds": True}, "above 0"),
        ({"max_concurrency": 1.5}, "whole number"),
        ({"requests_per_minut": 3}, "did you mean 'requests_per_minute'"),
        ({"max_tokens_key": ""}, "the name of a key"),
        ({"tokenizer": 3}, "a checkpoint"),
    ],
)
def test_options_that_can_t_work_are_refused_and_secrets_not_repeated(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as error:
        read_endpoint({"base_url": "http://host/v1", "model": "m", **options}, "models.judge")
    assert "models.judge" in str(error.value)
    assert KEY not in str(error.value)


def with_api(scripted: Callable[..., dict[str, Any]], url: str, **judge: Any) -> dict[str, Any]:
    options = {"base_url": url, "model": "m", "api_key_env": "TEST_API_KEY"}
    judge = {"engine": "openai", "train": False, "engine_options": options, "max_model_len": 2048, **judge}
    return scripted(
        models={"judge": judge},
        roles={"answerer": {"model": "judge"}, **{r: {"model": "team"} for r in ("decomposer", "reader")}},
    )


Scripted = Callable[..., dict[str, Any]]


def test_a_model_behind_an_api_is_never_trained(scripted: Scripted) -> None:
    with pytest.raises(UsageError, match=r"models\.judge\.train = false"):
        assemble(parse_settings(with_api(scripted, "http://host/v1", train=True)))
    plan = assemble(parse_settings(with_api(scripted, "http://host/v1", checkpoint="nowhere/at-all")))
    assert list(plan.trainer_specs) == ["team"]


def test_check_shows_the_endpoint_and_whether_there_is_a_key(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = assemble(parse_settings(with_api(scripted, "http://host/v1")))
    monkeypatch.delenv("TEST_API_KEY", raising=False)
    assert "TEST_API_KEY" in str(key_problem(plan))
    monkeypatch.setenv("TEST_API_KEY", KEY)
    assert key_problem(plan) is None
    shown = "\n".join(report_lines(report(plan)))
    assert "m at http://host/v1, key from TEST_API_KEY (set)" in shown
    assert KEY not in shown


def test_how_fast_an_api_is_asked_changes_no_fingerprint(scripted: Scripted) -> None:
    raw = with_api(scripted, "http://host/v1")
    plans = [assemble(parse_settings(raw))]
    for name, value in (("max_concurrency", 3), ("model", "other")):
        raw["models"]["judge"]["engine_options"][name] = value
        plans.append(assemble(parse_settings(raw)))
    first, paced, other = (p.fingerprints["rollout"] for p in plans)
    assert first == paced != other
    assert plans[0].identity == plans[1].identity != plans[2].identity


# --- a whole iteration --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_team_trains_while_one_role_speaks_through_an_api(
    scripted: Scripted, api: Api, ray_cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.cli.show import print_place
    from pipeline.run.session import session
    from pipeline.store.shelf import shelf_of

    api.reply = lambda body: said(echo_qa(body["messages"], Sampling(max_tokens=9, seed=body["seed"])))
    plan = assemble(parse_settings(with_api(scripted, api.url)))
    with session(plan, signals=False) as runner:
        done = runner.run_iteration()
        tables = {name: pl.DataFrame(ref.read()) for name, ref in done.tables.items()}
        print_place(shelf_of(runner.run), 0, episode=None, episodes=2, full=True, as_json=False)
    turns, partition = tables["turns"], tables["partition/team"]
    remote = turns.filter(model_id="judge")
    assert remote.height == len(api.asked) > 0
    assert set(tables["episodes"]["status"]) == {"ok"}
    assert remote["response_token_ids"].null_count() == remote.height
    assert remote["response_text"].null_count() == 0
    assert set(partition["model_id"]) == {"team"}
    assert partition.height == turns.filter(model_id="team").height
    for account in done.accounts:
        account.check()
    left_out = remote.join(tables["credit"], on=["episode_id", "turn_index"])["excluded"]
    assert set(left_out) == {"model is frozen"}
    assert tables["updates/team"].filter(kind="summary")["version_after"].to_list() == [1]
    shown = capsys.readouterr().out
    assert "7 → 5 tokens" in shown
    assert KEY not in shown + str(plan.settings)

    api.models = (401, {}, {"error": {"message": "who are you?"}})
    played = len(api.asked)
    with session(plan, signals=False) as runner, pytest.raises(RunFailed, match="who are you"):
        runner.run_iteration()
    assert len(api.asked) == played
