"""Credit of some tokens of a turn: on these tokens alone, and nothing else moves by a bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest

from stages.players.spans import message_span
from stages.token_advantages.part import token_advantages
from stages.token_advantages.rows import ROWS_SEEN, read_rows
from stages.token_advantages.spans import of_rows, spans_of
from stages.token_advantages.spec import TokenSpec
from workflows.credit_tables import CREDIT_CHANNELS
from workflows.errors import SchemaError, UsageError
from workflows.playing.spans import token_span
from workflows.testing import ScriptedModel, replies
from workflows.trajectory import rows_to_table


def partition(*advantages: float, tokens: int = 4) -> Any:
    rows = [
        {
            **{"episode_id": f"e{k}", "turn_index": 0, "role": "r", "reward": 0.0, "advantage": advantage},
            **{"response_token_ids": [1] * tokens, "behaviour_logprobs": [-1.0] * tokens},
        }
        for k, advantage in enumerate(advantages)
    ]
    return read_rows(rows_to_table(rows, ROWS_SEEN), None, [])


def spans(*rows: tuple[int, float, int | None, int | None]) -> pl.DataFrame:
    made = [
        {
            **{"episode_id": f"e{k}", "turn_index": 0, "value": value, "weight": 2.0, "counts": True},
            **{"first_token": first, "end_token": end},
        }
        for k, value, first, end in rows
    ]
    return spans_of(rows_to_table(made, CREDIT_CHANNELS))


SPEC = TokenSpec("m", spans=True)


def test_a_span_has_its_credit_and_the_other_tokens_do_not() -> None:
    """Of 3.0, 2 · 0.5 belongs to tokens 1 and 2."""
    tokens = token_advantages(partition(3.0, 1.0), SPEC, None, spans((0, 0.5, 1, 3)))
    assert tokens.advantages.tolist() == [2.0, 3.0, 3.0, 2.0] + [1.0] * 4


def test_spans_of_one_turn_add_up_and_open_ends_reach_to_the_ends() -> None:
    tokens = token_advantages(partition(0.1), SPEC, None, spans((0, 0.25, None, 2), (0, -0.5, 3, None)))
    assert tokens.advantages.tolist() == pytest.approx([0.1 + 1.0, 0.1 + 1.0, 0.1 + 0.5, 0.1 - 0.5])


def test_without_spans_every_bit_is_as_before() -> None:
    rows = partition(0.1, 0.2, 0.7)
    plain = token_advantages(rows, dataclasses.replace(SPEC, spans=False), None)
    beside = token_advantages(rows, SPEC, None, spans((9, 1.0, 0, 1)))
    assert np.array_equal(plain.advantages, beside.advantages)
    assert not spans((0, 1.0, None, None)).height  # a whole turn is no span
    assert of_rows(spans((0, 1.0, 0, 1), (9, 1.0, 0, 1)), rows.frame)["episode_id"].to_list() == ["e0"]


def test_a_span_beyond_its_response_is_refused() -> None:
    with pytest.raises(SchemaError, match="has 4 response tokens"):
        token_advantages(partition(1.0), SPEC, None, spans((0, 1.0, 2, 5)))


def test_spans_need_advantages_that_come_from_credit() -> None:
    with pytest.raises(UsageError, match="remove credit"):
        TokenSpec("m", use="gae", spans=True)
    assert SPEC.does_something
    assert not TokenSpec("m").does_something


WORDS = ["<think>", "so", "</think>", " the", " ans", "wer"]


def decode(model_id: str, ids: Any) -> str:
    return "".join(WORDS[i] for i in ids)


def reply(ids: list[int]) -> dict[str, Any]:
    return {"response_text": decode("m", ids), "response_token_ids": ids, "model_id": "m"}


def test_a_message_is_what_stands_outside_of_its_thoughts() -> None:
    assert message_span(reply([0, 1, 2, 3, 4, 5]), [], decode) == (3, 6)
    assert message_span(reply([3, 4, 5]), [], decode) is None  # all of it
    assert message_span(reply([0, 1]), [], decode) is None  # a thought that never ends says nothing
    assert message_span(reply([0, 1, 2, 3]), [], lambda model_id, ids: None) is None  # an API


def test_acts_say_which_characters_they_are_and_tokens_are_never_encoded_again() -> None:
    acts = [
        {"act_detail": '{"characters":[5,6]}'},
        {"act_detail": None},
        {"act_detail": '{"characters":[7,9]}'},
    ]
    # " the answer": characters 5 to 9 lie in " ans" and "wer"
    assert message_span(reply([3, 4, 5]), acts, decode) == (1, 3)
    assert token_span(lambda ids: decode("m", ids), [3, 4, 5], 0, 4) == (0, 1)
    assert token_span(lambda ids: decode("m", ids), [3, 4, 5], 0, 99) is None


@pytest.mark.parametrize("text", ["plain words", "a «🙂» b", "ßß", "🙂🙂 end"])
def test_every_part_of_a_text_has_the_ids_that_spell_it_and_no_others(text: str) -> None:
    model = ScriptedModel(replies({".": text}))
    ids = model.encode(text)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            span = token_span(model.decode, ids, start, end)
            assert span is not None
            assert text[start:end] in model.decode(ids[span[0] : span[1]])
            for shorter in ((span[0] + 1, span[1]), (span[0], span[1] - 1)):
                assert text[start:end] not in model.decode(ids[shorter[0] : shorter[1]])
