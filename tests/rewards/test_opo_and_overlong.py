"""OPO's baseline by length, and DAPO's two ways with replies that grow too long."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.credit.assign import credit_turns
from rewards.credit.group_relative import GroupRelative
from rewards.credit.opo import Opo
from rewards.length import Length
from rewards.loading import load_credit
from tests.support.scored_turns import episode, llm, parts, score
from tests.support.scored_turns import only as only_reward
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table

law = settings(max_examples=60)


def tables(*turns):
    """Turns of one task, one an episode: (reward, tokens, status)."""
    keys = [{"episode_id": f"00000/t/{i}", "turn_index": 0} for i in range(len(turns))]
    identity = {"task_id": "t", "group_id": "00000/t"}
    return (
        rows_to_table(
            [
                key
                | {"role": "a", "step": "a", "model_id": "m", "num_response_tokens": tokens, "status": status}
                for key, (_, tokens, status) in zip(keys, turns, strict=True)
            ],
            TURNS,
        ),
        rows_to_table(
            [identity | {"episode_id": key["episode_id"], "sample": i} for i, key in enumerate(keys)],
            EPISODES,
        ),
        rows_to_table(
            [key | {"reward": reward} for key, (reward, _, _) in zip(keys, turns, strict=True)], REWARDS
        ),
    )


def advantages(method, *turns, **options):
    return credit_turns(*tables(*turns), method, **options).table["advantage"].to_pylist()


def test_the_baseline_weighs_each_reply_by_its_tokens() -> None:
    """(10·1 + 20·0 + 10·0) / 40 = 0.25, where the plain mean is a third."""
    turns = [(1.0, 10, "ok"), (0.0, 20, "ok"), (0.0, 10, "ok")]
    assert advantages(load_credit("opo", {}), *turns) == [0.75, -0.25, -0.25]


@law
@given(
    st.lists(st.tuples(st.floats(-3, 3, width=32), st.integers(1, 500)), min_size=2, max_size=6),
    st.floats(-2, 2),
)
def test_it_is_the_baseline_of_least_variance_of_gradients_that_grow_with_length(replies, other) -> None:
    """Σ l·(R - b)² is least at the baseline, so the advantages weighed by length add up to 0."""
    turns = [(reward, tokens, "ok") for reward, tokens in replies]
    found = advantages(Opo(), *turns)
    assert sum(tokens * a for (_, tokens), a in zip(replies, found, strict=True)) == pytest.approx(
        0, abs=1e-6
    )
    at_best = sum(tokens * a * a for (_, tokens), a in zip(replies, found, strict=True))
    elsewhere = sum(tokens * (a + other) ** 2 for (_, tokens), a in zip(replies, found, strict=True))
    assert at_best <= elsewhere + 1e-6


@law
@given(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=6), st.integers(1, 300))
def test_with_equal_lengths_it_is_the_plain_mean(rewards, tokens) -> None:
    turns = [(reward, tokens, "ok") for reward in rewards]
    assert advantages(Opo(), *turns) == pytest.approx(advantages(GroupRelative(), *turns), abs=1e-9)


def test_a_turn_without_a_count_is_no_division_by_zero() -> None:
    assert advantages(Opo(), (1.0, None, "ok"), (0.0, 0, "ok")) == [0.5, -0.5]


OVERLONG = [(1.0, 9, "ok"), (-1.0, 64, "truncated"), (0.0, 9, "ok")]


def test_a_masked_reply_counts_in_the_baseline_and_is_not_trained_on() -> None:
    masked = credit_turns(*tables(*OVERLONG), GroupRelative(), mask_truncated=True).table
    assert masked["advantage"].to_pylist() == advantages(GroupRelative(), *OVERLONG) == [1.0, -1.0, 0.0]
    assert masked["excluded"].to_pylist() == [None, "truncated", None]
    assert credit_turns(*tables(*OVERLONG), GroupRelative()).table["excluded"].null_count == 3


def test_groups_are_counted_without_what_is_masked() -> None:
    """All that differs was cut off: what is left to train on has no signal."""
    turns = [(0.0, 64, "truncated"), (0.5, 9, "ok"), (0.5, 9, "ok"), (1.0, 64, "truncated")]
    groups = credit_turns(*tables(*turns), GroupRelative(), mask_truncated=True).groups
    assert groups == {"groups": 1, "groups_without_signal": 1, "groups_of_one_episode": 0}
    lost = credit_turns(*tables(*OVERLONG[1:2]), GroupRelative(), mask_truncated=True)
    assert (lost.groups["groups"], lost.table.num_rows) == (0, 1)


def test_rows_in_are_rows_out_and_rows_left_out_by_reason() -> None:
    table = credit_turns(*tables(*OVERLONG * 3), GroupRelative(), mask_truncated=True).table
    assert Counter(table["excluded"].to_pylist()) == {None: 6, "truncated": 3}


@pytest.mark.parametrize("tokens", [0, 60, 80, 81, 90, 99, 100, 150])
def test_a_length_reward_is_the_soft_punishment_of_dapo(tokens) -> None:
    """Equation 13 of arXiv:2503.14476: free, then a straight line to -1, then -1."""
    longest, cache = 100, 20
    if tokens <= longest - cache:
        expected = 0.0
    elif tokens <= longest:
        expected = ((longest - cache) - tokens) / cache
    else:
        expected = -1.0
    reward = Length(cost=1 / cache, budget=longest - cache, most=1)
    turn = llm(0, num_response_tokens=tokens)
    scored = score([turn], [episode()], rewards=only_reward(reward))
    assert parts(scored["t/0", 0])["mine"] == pytest.approx(expected)


def test_the_frame_of_a_credit_method_has_lengths_and_statuses() -> None:
    seen: list[pl.DataFrame] = []

    def method(turns):
        seen.append(turns)
        return GroupRelative()(turns)

    credit_turns(*tables(*OVERLONG), method)
    assert seen[0]["num_response_tokens"].to_list() == [9, 64, 9]
    assert seen[0]["status"].to_list() == ["ok", "truncated", "ok"]
