"""Rules of stopping and their measures, on traces small enough to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rewards.stopping.measures import area, best_fixed, calibration, measures, returned
from rewards.stopping.rules import first_where, repeated, ruled
from rewards.stopping.traces import Traces


def traces(score: list[list[float]], **more: Any) -> Traces:
    worth = np.array(score, dtype=float)
    size, points = worth.shape
    values: dict[str, Any] = {
        "last": np.full(size, points - 1),
        "score": worth,
        "cost": np.broadcast_to(np.arange(points, dtype=float), worth.shape).copy(),
        "stop": np.full(worth.shape, 0.5),
        "learned": np.ones(worth.shape, dtype=bool),
        "agreement": np.full(worth.shape, np.nan),
        "answer": np.full(worth.shape, -1, dtype=np.int64),
    }
    return Traces(**{**values, **more})


def by_rule(rows: Traces, price: float) -> dict[tuple[str, float | None], float]:
    return {(rule.rule, rule.setting): rule.utility for rule in ruled(rows, price)}


def test_rules_stop_where_they_say_on_the_same_traces() -> None:
    rows = traces(
        [[0, 1, 0], [1, 1, 1]],
        agreement=np.array([[0.5, 1.0, 1.0], [1.0, 1.0, 1.0]]),
        answer=np.array([[0, 1, 1], [2, 2, 2]]),
    )
    utility = by_rule(rows, 0.1)
    assert utility["fixed", 0.0] == pytest.approx(0.5)
    assert utility["fixed", 1.0] == pytest.approx(0.9)
    assert utility["budget", None] == pytest.approx(0.3)
    assert utility["unanimity", None] == pytest.approx((0.9 + 1.0) / 2)  # at points 1 and 0
    assert utility["patience", 2.0] == pytest.approx((-0.2 + 0.9) / 2)  # at points 2 and 1
    assert utility["hindsight", None] == pytest.approx(0.95)
    assert best_fixed(ruled(rows, 0.1)).setting == 1.0


def test_rules_that_nothing_was_measured_for_are_left_out() -> None:
    names = {rule.rule for rule in ruled(traces([[0, 1], [1, 0]]), 0.0)}
    assert names == {"fixed", "budget", "policy", "hindsight"}


def test_a_trace_that_ends_early_is_held_to_its_end() -> None:
    rows = traces([[0, 1, 9], [0, 0, 1]], last=np.array([1, 2]))
    assert by_rule(rows, 0.0)["fixed", 2.0] == 1.0
    assert (first_where(np.zeros((2, 3), dtype=bool), rows) == [1, 2]).all()


def test_patience_counts_equal_answers_in_a_row_and_never_missing_ones() -> None:
    answers = np.array([[3, 3, 3, -1, -1]])
    assert repeated(answers, 2).tolist() == [[False, True, True, False, False]]
    assert repeated(answers, 3).tolist() == [[False, False, True, False, False]]


def test_regression_learns_to_stop_where_a_feature_tells() -> None:
    """An answer that repeats itself is right; one that does not is wrong and will be right later."""
    luck = np.random.default_rng(0)
    early = luck.random(400) < 0.5
    score = np.where(early[:, None], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    answer = np.where(early[:, None], [1, 1, 2], [1, 2, 3])
    utility = by_rule(traces(score.tolist(), answer=answer), 0.0)
    assert utility["regression", None] == pytest.approx(1.0)
    assert utility["fixed", 1.0] < 0.6


def test_regret_is_none_of_a_policy_that_knows_and_early_and_late_stops_are_told_apart() -> None:
    score = [[0, 1, 0], [1, 0, 0]]
    knows = traces(score, stop=np.array([[0.0, 1.0, 0.5], [1.0, 0.5, 0.5]]))
    assert measures(knows, 0.0)["regret"] == 0
    hasty = measures(traces(score, stop=np.ones((2, 3))), 0.0)
    assert (hasty["early_share"], hasty["late_share"], hasty["regret"]) == (0.5, 0.0, 0.5)
    slow = measures(traces(score, stop=np.zeros((2, 3))), 0.0)
    assert (slow["early_share"], slow["late_share"]) == (0.0, 1.0)


def test_calibration_compares_what_stops_claim_with_what_they_score() -> None:
    rows = traces([[1, 0], [0, 0]], stop=np.array([[0.9, 0.0], [0.1, 0.0]]))
    low, high = calibration(rows)
    assert (low.claim, low.score) == (pytest.approx(0.1), 0.0)
    assert (high.claim, high.score) == (pytest.approx(0.9), 1.0)
    assert measures(rows, 0.0)["calibration_error"] == pytest.approx(0.1)


def test_the_area_is_a_mean_score_over_budgets() -> None:
    assert area(traces([[0, 1, 1]])) == pytest.approx(0.75)
    flat = traces([[0.25, 0.75]], cost=np.zeros((1, 2)))
    assert area(flat) == pytest.approx(0.5)


def test_late_answers_can_spoil_what_a_choice_among_them_saves() -> None:
    score = [[1.0, 1.0, 0.0]] * 4
    rows = traces(score, answer=np.array([[1, 1, 2]] * 4), stop=np.array([[0.2, 0.9, 0.1]] * 4))
    of = returned(rows, rows.last)
    assert (of["last"], of["first"], of["majority"], of["surest"], of["head"]) == (0, 1, 1, 1, 1)
