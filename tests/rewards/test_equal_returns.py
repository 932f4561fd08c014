"""Returns that are equal but for rounding teach nothing, whatever the credit method."""

import polars as pl
import pytest

from rewards.credit.equal import tolerance
from rewards.credit.moments import Moments
from rewards.credit.silent import LeaveOutSilent
from rewards.loading import load_credit
from tests.rewards.test_credit_methods import frame

TO_GO = [
    *((("t", 0, "a", r)) for r in (0.1, 0.2, 0.3)),
    *((("t", 1, "a", r)) for r in (0.3, 0.2, 0.1)),
]
SUMS = [("t", 0, "a", 0.1 + 0.2), ("t", 1, "a", 0.3), ("t", 2, "a", 0.6 - 0.3)]
NOUGHTS = [("t", 0, "a", 0.1 + 0.2 - 0.3), ("t", 1, "a", 0.0), ("t", 2, "a", 0.3 - 0.1 - 0.2)]
METHODS = ["group_relative", "grpo", "rloo", "opo", "rank_normal", "reinforce_pp", "running_baseline"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [SUMS, NOUGHTS], ids=["sums", "noughts"])
def test_sums_in_another_order_are_silent(method, rows) -> None:
    turns = frame(*rows)
    assert turns["reward"].n_unique() > 1
    assert load_credit(method, {})(turns)["advantage"].to_list() == [0.0] * len(rows)


@pytest.mark.parametrize("method", ["group_relative", "grpo", "rloo", "opo", "rank_normal"])
def test_the_first_turns_of_plays_with_the_same_rewards_are_silent(method) -> None:
    turns = frame(*TO_GO)
    options = {"returns": "to_go", "by": "task_role_step"}
    credited = load_credit(method, options)(turns.with_columns(step=pl.col("turn_index").cast(pl.String)))
    first = credited.filter(pl.col("turn_index") == 0)
    assert first["return"].n_unique() == 2
    assert first["advantage"].to_list() == [0.0, 0.0]


def test_a_tie_among_other_returns_is_one_rank_and_one_winner() -> None:
    turns = frame(*SUMS, ("t", 3, "a", 0.0))
    advantages = load_credit("rank_normal", {})(turns)["advantage"].to_list()
    assert advantages[0] == advantages[1] == advantages[2] > advantages[3]
    best = load_credit("rejection", {"best": True})(turns)["advantage"].to_list()
    assert best == [1.0, 0.0, 0.0, 0.0]  # the first of those that are best
    kept = load_credit("rejection", {"at_least": 0.1 + 0.2})(turns)["advantage"].to_list()
    assert kept == [1.0, 1.0, 1.0, 0.0]


def test_silent_groups_are_left_out_and_small_differences_are_not_silent() -> None:
    turns = load_credit("group_relative", {})(frame(*SUMS))
    assert LeaveOutSilent().silent(turns, None, ("group_id",)).height == 3
    apart = frame(("t", 0, "a", 1000.0), ("t", 1, "a", 1000.0 + 1e-5))
    assert load_credit("group_relative", {})(apart)["advantage"].to_list() == pytest.approx([-5e-6, 5e-6])
    tiny = frame(("t", 0, "a", 1e-9), ("t", 1, "a", 3e-9))
    assert load_credit("rank_normal", {})(tiny)["advantage"][0] < 0


def test_what_is_whitened_has_no_deviation_but_for_rounding() -> None:
    equal = Moments.of(frame(*SUMS)["reward"].to_numpy())
    assert equal.low < equal.high
    assert equal.deviation == 0
    assert Moments.of(pl.Series([1000.0, 1000.001]).to_numpy()).deviation == pytest.approx(0.001 / 2**0.5)
    assert tolerance(0.0, 0.0) == 1e-12
