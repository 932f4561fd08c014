"""The scripted model that ships for users' tests behaves as an engine does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.engine import Message, Sampling
from workflows.errors import InfraError, UsageError
from workflows.graph import LlmStep, Workflow
from workflows.roles import Role
from workflows.testing import VOCAB_SIZE, ScriptedModel, echo_qa, play_once, replies

texts = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=40)
said = st.sampled_from(["a", "Question: what is it?", "日本 {} <answer>", ""])


def model(reply: str = "ok", **options: int) -> ScriptedModel:
    return ScriptedModel(lambda messages, sampling: reply, **options)


@given(texts)
def test_every_text_survives_the_tokenizer(text: str) -> None:
    ids = model().encode(text)
    assert model().decode(ids) == text
    assert all(0 <= i < VOCAB_SIZE for i in ids)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), texts), max_size=4))
def test_a_chat_survives_its_rendering(chat: list[tuple[str, str]]) -> None:
    messages: list[Message] = [{"role": role, "content": text} for role, text in chat]  # type: ignore[typeddict-item]
    assert model().messages(model().render(messages)) == messages


@given(texts, st.integers(1, 30))
def test_a_reply_ends_by_itself_or_at_the_token_limit(text: str, max_tokens: int) -> None:
    completion = model(text).complete([1, 2], Sampling(max_tokens))
    whole = model().encode(text)
    assert len(completion.logprobs) == len(completion.token_ids) <= max_tokens
    assert all(-2 <= p < 0 for p in completion.logprobs)
    if completion.finish_reason == "stop":
        assert completion.token_ids[:-1] == whole
        assert completion.text == text
    else:
        assert completion.token_ids == [*whole, 257][:max_tokens]
        assert len(whole) >= max_tokens


def test_the_same_prompt_and_seed_give_the_same_bits_and_another_prompt_other_logprobs() -> None:
    one, same = (model().complete([1, 2], Sampling(9, seed=3)) for _ in range(2))
    assert one == same
    assert model().complete([1, 3], Sampling(9, seed=3)).logprobs != one.logprobs


def test_a_stop_string_ends_a_reply_and_stays_in_it() -> None:
    completion = model("one</a> two").complete([1], Sampling(99, stop=("</a>", "two")))
    assert (completion.text, completion.finish_reason) == ("one</a>", "stop")


def test_what_does_not_fit_the_context_is_refused() -> None:
    with pytest.raises(InfraError, match="exceed 10"):
        model(max_model_len=10).complete([1] * 5, Sampling(6))


def test_replies_by_pattern() -> None:
    reply = replies({"capital": "Paris", "^How": "by train"})
    assert reply([{"role": "user", "content": "How?"}], Sampling(9)) == "by train"
    with pytest.raises(UsageError, match="no reply is scripted for 'Who"):
        reply([{"role": "user", "content": "Who?"}], Sampling(9))


def test_a_role_without_a_reply_is_named() -> None:
    workflow = Workflow("w", [Role("writer", "{q}")], [LlmStep("a", "writer", {"q": "task.q"})])
    with pytest.raises(UsageError, match="no reply for role 'writer'; replies are given for: reader"):
        play_once(workflow, {"q": "?"}, {"reader": "x"})


@given(said, st.integers(0, 2**63 - 1))
def test_echo_qa_answers_anything(text: str, seed: int) -> None:
    assert echo_qa([{"role": "user", "content": text}], Sampling(9, seed=seed))
