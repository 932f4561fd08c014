"""A role behind an OpenAI-compatible API: its rows, what is sent, what comes back, prompts that fit."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engines.base import EngineSpec
from stages.engines.openai.engine import OpenAIEngine
from stages.engines.openai.protocol import NotAnAnswer, model_names, read_answer, words_of
from stages.weights.chat import ChatRenderer
from tests.support.chat_api import (
    CHAT,
    KEY,
    Api,
    chat,
    engine,
    play,
    said,
)
from workflows.engine import Message
from workflows.roles import RoleSettings
from workflows.trajectory import EPISODES, TURNS, rows_to_table

pytestmark = pytest.mark.usefixtures("api_key")


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
    role = RoleSettings(temperature=0.3, top_p=0.9, stop=("END",), top_k=4, min_p=0.05)
    play(engine(api.url), role=role, samples=2)
    for body in api.asked:
        assert (body["model"], body["max_tokens"]) == ("m", 50)
        assert (body["temperature"], body["top_p"], body["stop"], body["top_k"]) == (0.3, 0.9, ["END"], 4)
        assert body["min_p"] == 0.05
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


@pytest.mark.parametrize("reason", ["length", "max_tokens", "model_length", "MAX_TOKENS"])
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
    said("half", "insufficient_system_resource"),
    {"choices": [{"error": {"code": 502, "message": "provider is down"}, "finish_reason": "error"}]},
    {"choices": [{"error": {"code": 502}, "message": {"content": "ha"}, "finish_reason": None}]},
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


@settings(max_examples=150)
@given(json_values)
def test_any_json_is_a_reply_or_no_answer(body: Any) -> None:
    with contextlib.suppress(NotAnAnswer):
        assert isinstance(read_answer(body, 0.0).text, str)
    assert all(isinstance(name, str) for name in model_names(body))
    assert "\n" not in words_of(body)


# --- prompts that fit ---------------------------------------------------------------------------


def test_a_prompt_is_trimmed_by_the_estimate(api: Api) -> None:
    asked = engine(api.url, max_model_len=150)
    (turn,) = play(asked, ["a line of words"] * 40)[0].turns
    assert turn["status"] == "ok"
    assert json.loads(turn["cut"])["lines"]["items"] > 0
    assert asked.count_tokens(json.loads(turn["messages"])) <= 100
    assert turn["num_prompt_tokens"] == 7  # the server's number, not the estimate


@settings(max_examples=50)
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
