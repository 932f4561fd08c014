"""Alarms: each fires on a series that has its sign, not on a healthy one, and is over when its sign is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.metrics.alarms import alarms
from pipeline.settings.tracking import AlarmsSection

LIMITS = AlarmsSection(iterations=3, length_window=10)
HEALTHY = {
    "reward/min": 0.0,
    "reward/max": 1.0,
    "groups/no_signal_rate": 0.2,
    "rows/trainable_excluded_rate": 0.05,
    "rollout/failed_rate": 0.0,
    "role/reader/response_tokens_mean": 40.0,
    "role/reader/truncated_rate": 0.1,
    "role/reader/sampled_entropy": 1.0,
    "role/reader/gradient_share": 0.6,
    "role/reader/token_share": 0.5,
    "role/reader/copies": 4.0,
    "role/reader/copies_cosine": 0.1,
    "model/team/skipped": 0.0,
    "model/team/kl_old": 0.001,
    "model/team/kl_reference": 0.02,
    "model/team/sampler_gap_mean": 0.02,
}
SIGNS: dict[str, dict[str, float]] = {
    "constant_reward": {"reward/min": 0.3, "reward/max": 0.3},
    "no_signal": {"groups/no_signal_rate": 1.0},
    "much_excluded": {"rows/trainable_excluded_rate": 0.6},
    "length_drift/reader": {"role/reader/response_tokens_mean": 90.0},
    "cut_off/reader": {"role/reader/truncated_rate": 0.8},
    "entropy_collapse/reader": {"role/reader/sampled_entropy": 0.05},
    "role_dominates/reader": {"role/reader/gradient_share": 0.9},
    "copies_add_up/reader": {"role/reader/copies_cosine": 0.9},
    "large_update/team": {"model/team/kl_old": 0.5},
    "far_from_reference/team": {"model/team/kl_reference": 3.0},
    "sampler_gap/team": {"model/team/sampler_gap_mean": 0.8},
}
OTHER_SIGNS = [
    ("no_signal", {"model/team/skipped": 1.0}),
    ("much_excluded", {"rollout/failed_rate": 0.5}),
    ("length_drift/reader", {"role/reader/response_tokens_mean": 15.0}),
]


def series(*pieces: tuple[int, dict[str, float]]) -> list[tuple[int, dict[str, float]]]:
    """So many iterations each, healthy but for the changes."""
    found = [HEALTHY | changes for count, changes in pieces for _ in range(count)]
    return list(enumerate(found))


def keys(*pieces: tuple[int, dict[str, float]], limits: AlarmsSection = LIMITS) -> list[str]:
    return [alarm.key for alarm in alarms(series(*pieces), limits)]


@pytest.mark.parametrize(("key", "sign"), [*SIGNS.items(), *OTHER_SIGNS])
def test_each_sign_raises_its_alarm_alone_after_so_many_iterations_and_not_before(
    key: str, sign: dict[str, float]
) -> None:
    assert keys((5, {})) == []
    assert keys((5, {}), (2, sign)) == []
    assert keys((5, {}), (3, sign)) == [key]
    (alarm,) = alarms(series((5, {}), (4, sign)), LIMITS)
    assert alarm.since == 5
    assert str(alarm).startswith(f"{key} since iteration 5: ")
    assert alarm.what
    assert alarm.look


@pytest.mark.parametrize(("key", "sign"), [*SIGNS.items(), *OTHER_SIGNS])
def test_an_alarm_is_over_with_the_first_iteration_without_its_sign(key: str, sign: dict[str, float]) -> None:
    assert keys((5, {}), (4, sign), (1, {})) == []
    assert keys((5, {}), (2, sign), (1, {}), (2, sign)) == []


def test_a_role_with_most_of_the_tokens_or_all_of_a_model_does_not_dominate() -> None:
    heavy = {"role/reader/gradient_share": 0.9}
    assert keys((5, heavy | {"role/reader/token_share": 0.8})) == []
    alone = {"role/reader/gradient_share": 1.0, "role/reader/token_share": 1.0}
    assert keys((5, alone)) == []
    assert keys((5, {"role/reader/gradient_share": 1.0})) == ["role_dominates/reader"]


def returns(*values: float, std: float = 0.1) -> list[tuple[int, dict[str, float]]]:
    more = {"return/std": std, "rollout/episodes": 100.0}
    return [(k, HEALTHY | more | {"return/mean": value}) for k, value in enumerate(values)]


def test_a_fall_from_the_peak_is_told_with_the_weights_of_the_peak() -> None:
    rises, falls = [0.2, 0.5, 0.8, 0.8, 0.8], [0.77, 0.75, 0.72]
    assert alarms(returns(*rises), LIMITS) == []
    assert alarms(returns(*rises, *falls[:1]), LIMITS) == []
    (alarm,) = alarms(returns(*rises, *falls), LIMITS, versions={"b": 4, "a": 3, "c": 0})
    assert (alarm.key, alarm.since) == ("fell_from_peak", 7)
    assert "from 0.8 (until iteration 4) to 0.7467" in alarm.what
    assert "kept: a version 3, b version 4 (" in alarm.look  # version 0 is the initial weights
    assert alarms(returns(*rises, *falls, 0.8, 0.8, 0.8), LIMITS) == []


def test_a_fall_within_chance_is_none() -> None:
    noisy = returns(0.2, 0.5, 0.8, 0.8, 0.8, 0.77, 0.75, 0.72, std=0.5)  # an error of 0.04
    assert alarms(noisy, LIMITS) == []
    assert alarms(returns(-1.0, -1.0, -1.0, -2.0, -2.0, -2.0), LIMITS) != []


def test_a_role_that_moves_though_it_earned_nothing_is_told() -> None:
    def moved(*distances: float, **changes: float) -> list[str]:
        rows = [
            {"role/reader/kl_reference": d} | {f"role/reader/{k}": v for k, v in changes.items()}
            for d in distances
        ]
        return [alarm.key for alarm in alarms(series(*((1, row) for row in rows)), LIMITS)]

    rising = (0.0, 0.005, 0.012, 0.03)
    assert moved(*rising) == []  # it has its part of the gradients
    assert moved(*rising, gradient_share=0.01) == ["style_leaks/reader"]
    assert moved(*rising, advantage_abs_mean=0.0) == ["style_leaks/reader"]
    assert moved(*rising[:3], gradient_share=0.01) == []
    assert moved(0.5, 0.5, 0.5, 0.5, gradient_share=0.01) == []  # far, but by what it earned before


def test_a_sampler_that_falls_behind_its_trainer_is_told_long_before_they_are_far_apart() -> None:
    def gap(value: float) -> dict[str, float]:
        return {"model/team/sampler_gap_mean": value}

    assert keys((1, gap(6e-6)), (3, gap(0.025))) == ["sampler_gap/team"]
    assert keys((1, gap(6e-6)), (3, gap(0.005))) == []  # small, whatever it was
    assert keys((1, gap(0.03)), (3, gap(0.05))) == []  # of bfloat16, from the start
    (alarm,) = alarms(series((1, gap(6e-6)), (3, gap(0.025))), LIMITS)
    assert alarm.what == "sampler and trainer differ by 0.025 nats per token, at first by 6e-06"


def test_all_at_once_are_all_raised() -> None:
    everything: dict[str, float] = {}
    for sign in SIGNS.values():
        everything |= sign
    assert set(keys((5, {}), (3, everything))) == set(SIGNS)


def test_a_new_length_that_stays_is_no_drift_any_more_and_a_slow_growth_is_one() -> None:
    longer = {"role/reader/response_tokens_mean": 90.0}
    assert keys((5, {}), (8, longer)) == ["length_drift/reader"]
    assert keys((5, {}), (25, longer)) == []
    slowly = [(1, {"role/reader/response_tokens_mean": 40.0 * 1.15**k}) for k in range(12)]
    assert keys(*slowly) == ["length_drift/reader"]


def test_a_word_instead_of_two_is_no_drift() -> None:
    assert (
        keys((5, {"role/reader/response_tokens_mean": 1.0}), (5, {"role/reader/response_tokens_mean": 4.0}))
        == []
    )


def test_roles_and_models_have_alarms_of_their_own() -> None:
    other = {"role/asker/truncated_rate": 0.9, "model/small/sampler_gap_mean": 0.9}
    assert keys((3, other)) == ["cut_off/asker", "sampler_gap/small"]


def test_iterations_keep_their_numbers_where_some_are_missing() -> None:
    numbered = [(10 * index, metrics) for index, metrics in series((5, {}), (3, SIGNS["no_signal"]))]
    assert [a.since for a in alarms(numbered, LIMITS)] == [50]


@settings(max_examples=60)
@given(st.data())
def test_metrics_that_are_missing_raise_nothing(data: Any) -> None:
    """Iterations without a table, of another version or with everything failed are no sign of their own."""

    def drop(metrics: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if data.draw(st.booleans())}

    assert alarms([(index, drop(metrics)) for index, metrics in series((8, {}))], LIMITS) == []
    assert alarms([], LIMITS) == []


def test_limits_are_settings() -> None:
    gap = SIGNS["sampler_gap/team"]
    assert keys((1, gap), limits=AlarmsSection(iterations=1)) == ["sampler_gap/team"]
    assert keys((9, gap), limits=AlarmsSection(sampler_gap=1.0)) == []


def test_a_gap_to_a_sampler_that_has_no_policy_is_no_alarm() -> None:
    """A script speaks for the model: its logprobs are made up, and all other signs count as ever."""
    series = [(index, HEALTHY | {"model/team/sampler_gap_mean": 7.4}) for index in range(3)]
    assert [alarm.key for alarm in alarms(series, LIMITS)] == ["sampler_gap/team"]
    assert alarms(series, LIMITS, without_logprobs={"team"}) == []
    assert [alarm.key for alarm in alarms(series, LIMITS, without_logprobs={"other"})] == ["sampler_gap/team"]
    bad = [(index, metrics | {"model/team/kl_old": 0.5}) for index, metrics in series]
    assert [alarm.key for alarm in alarms(bad, LIMITS, without_logprobs={"team"})] == ["large_update/team"]
