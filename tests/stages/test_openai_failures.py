"""An OpenAI-compatible API that fails, is busy or is late: what is asked again, and how fast."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from typing import Any

import pytest

from stages.engines.openai.engine import OpenAIEngine
from stages.engines.openai.protocol import retry_after
from tests.support.chat_api import (
    CHAT,
    KEY,
    Api,
    chat,
    engine,
    play,
)
from workflows.engine import Sampling
from workflows.errors import UsageError

pytestmark = pytest.mark.usefixtures("api_key")


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
    begun = time.monotonic()
    play(engine(api.url, requests_per_minute=1200), samples=4)
    assert len(api.times) == 4
    assert all(at - begun >= k * 0.05 - 0.001 for k, at in enumerate(sorted(api.times)))


def test_an_engine_pickles_while_it_is_in_use_and_outlives_event_loops(api: Api) -> None:
    asked = engine(api.url)

    async def use() -> OpenAIEngine:
        await asked.chat(CHAT, Sampling(max_tokens=9))
        return pickle.loads(pickle.dumps(asked))  # type: ignore[no-any-return]

    again = asyncio.run(use())
    assert chat(again).text == chat(asked).text
    assert len(api.asked) == 3
    assert again.endpoint == asked.endpoint
