"""Rewards that fail: one episode is lost, and the cause says which reward."""

import math
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from rewards.format import Format
from rewards.scoring.reasons import kind_of
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from tests.support.scored_turns import Returns, episode, llm, only, score


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ZeroDivisionError("by\nzero"), "failed: ZeroDivisionError: by zero"),
        ([1.0], "wrong number of values: 1 for 2 turns"),
        ([1.0, 2.0, 3.0], "wrong number of values: 3 for 2 turns"),
        ([1.0, math.nan], "not a finite number or None: nan"),
        ([-math.inf, 1.0], "not a finite number or None: -inf"),
        (["1.0", 1.0], "not a finite number or None: '1.0'"),
        (1.0, "failed: TypeError"),
        (None, "failed: TypeError"),
        ({0: 1.0, 1: 2.0}, "it returned a dict, expected one value per turn"),
        ({1.0, 2.0}, "it returned a set"),
        ("12", "it returned a str"),
        ([10**400, 1.0], "not a finite number or None: 'a number (int) that no float can hold'"),
        (
            [Fraction(10**400), 1.0],
            "not a finite number or None: 'a number (Fraction) that no float can hold'",
        ),
        ([1j, 1.0], "not a finite number or None: 1j"),
        ([[1.0], 1.0], "not a finite number or None: [1.0]"),
    ],
)
def test_a_reward_that_fails_costs_one_episode_and_says_which_reward(answer, why) -> None:
    rewards = WeightedRewards(
        (WeightedReward("mine", 1.0, Returns(answer)), WeightedReward("format", 1.0, Format()))
    )
    turns = [llm(i, episode_id=e) for e in ("t/0", "t/1") for i in (0, 1)]
    rows = score(turns, [episode(), episode("t/1")], rewards=rewards)
    for index in (0, 1):
        broken = rows["t/0", index]
        assert broken["reward"] is None
        assert broken["reward_parts"] == []
        assert "reward 'mine'" in broken["no_reward_reason"]
        assert why in broken["no_reward_reason"]
        assert rows["t/1", index]["reward"] == 1.0
    assert len({kind_of(r["no_reward_reason"]) for k, r in rows.items() if k[0] == "t/0"}) == 1


def test_a_kind_is_a_reason_up_to_its_details() -> None:
    assert kind_of("reward 'a:b' failed: KeyError: 'c'") == "reward 'a:b' failed"
    assert kind_of("episode timeout") == "episode timeout"


def test_of_two_rewards_that_fail_the_first_is_the_reason() -> None:
    items = [WeightedReward(name, 1.0, Returns(KeyError(name))) for name in ("b", "a")]
    for rewards in (items, items[::-1]):
        rows = score([llm(0)], rewards=WeightedRewards(tuple(rewards)))
        assert f"reward {rewards[0].name!r} failed" in rows["t/0", 0]["no_reward_reason"]


def test_numbers_of_any_library_and_lazy_ones_are_numbers() -> None:
    for answer in (
        np.array([1.0, 0.5]),
        (np.float32(1), Fraction(1, 2)),
        iter([True, 0.5]),
        pl.Series([1.0, 0.5]),
    ):
        rows = score([llm(0), llm(1)], rewards=only(Returns(answer)))
        assert [r["reward"] for r in rows.values()] == [1.0, 0.5]


def test_a_reward_that_fails_half_way_through_its_numbers_has_failed() -> None:
    def half():
        yield 1.0
        raise LookupError("gone")

    reason = score([llm(0), llm(1)], rewards=only(Returns(half())))["t/0", 0]["no_reward_reason"]
    assert re.fullmatch(r"reward 'mine' failed: LookupError: gone \(test_reward_failures\.py:\d+\)", reason)


def test_a_reward_can_not_change_what_the_next_one_sees() -> None:
    def writes(played):
        played.turns[0]["parsed"] = "Paris"
        return [0.0]

    reason = score([llm(0, parsed="Rome")], rewards=only(writes))["t/0", 0]["no_reward_reason"]
    assert kind_of(reason) == "reward 'mine' failed"


def test_cancellation_is_not_taken_for_a_failed_reward() -> None:
    def cancelled(played):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score([llm(0)], rewards=only(cancelled))


def test_many_failures_are_few_kinds() -> None:
    def fails(played):
        raise ValueError(f"episode {played.episode_id} is odd")

    ids = [f"t/{s}" for s in range(9)]
    rows = score([llm(0, episode_id=e) for e in ids], [episode(e) for e in ids], rewards=only(fails))
    assert Counter(kind_of(r["no_reward_reason"]) for r in rows.values()) == {"reward 'mine' failed": 9}
