"""Intervals hold what they promise, also for few seeds, and Holm's correction is Holm's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.experiments.study.statistics import difference, effect_of, holm, score_of

CHANCES = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=12)


def noise(random: np.random.Generator, seeds: int, tasks: int, spread: tuple[float, ...]) -> dict:  # type: ignore[type-arg]
    """Numbers around 0 whose seeds, tasks and single plays vary by these deviations."""
    values = sum(
        random.normal(0, deviation, shape)
        for deviation, shape in zip(spread, ((seeds, 1), (1, tasks), (seeds, tasks)), strict=True)
    )
    return {s: {f"t{t:03d}": float(values[s, t]) for t in range(tasks)} for s in range(seeds)}


@pytest.mark.parametrize(
    ("seeds", "spread"),
    [(3, (0.1, 0.2, 0.3)), (3, (0.2, 0.0, 0.3)), (2, (0.1, 0.2, 0.3)), (5, (0.1, 0.1, 0.3))],
)
def test_an_interval_holds_the_truth_and_noise_is_seldom_told(seeds: int, spread: tuple[float, ...]) -> None:
    """300 studies of nothing: 95 % intervals hold 0 in 92 % or more, and few have a chance below 5 %."""
    random = np.random.default_rng(7)
    effects = [effect_of(noise(random, seeds, 20, spread), draws=1000) for _ in range(300)]
    held = sum(e.low <= 0 <= e.high for e in effects)  # type: ignore[operator]
    assert held >= 0.92 * len(effects)
    assert sum(e.chance <= 0.05 for e in effects) <= 0.08 * len(effects)  # type: ignore[operator]


def test_a_large_effect_is_told_and_its_interval_is_around_it() -> None:
    values = noise(np.random.default_rng(1), 3, 20, (0.02, 0.1, 0.1))
    effect = effect_of({s: {t: v + 0.5 for t, v in by_task.items()} for s, by_task in values.items()})
    assert effect.low is not None
    assert effect.high is not None
    assert 0 < effect.low < effect.mean < effect.high
    assert effect.chance is not None
    assert effect.chance < 0.01


def test_seeds_that_disagree_widen_the_interval() -> None:
    tasks = [f"t{i}" for i in range(20)]
    agree = effect_of({s: {t: 0.3 + 0.01 * (i % 2) for i, t in enumerate(tasks)} for s in range(3)})
    disagree = effect_of({s: {t: 0.3 * s + 0.01 * (i % 2) for i, t in enumerate(tasks)} for s in range(3)})
    assert agree.mean == pytest.approx(disagree.mean, abs=0.01)
    assert agree.chance is not None
    assert disagree.chance is not None
    assert agree.chance < 0.01 < 0.05 < disagree.chance


def test_equal_numbers_are_told_by_the_sign_test_over_tasks() -> None:
    same = {s: {f"t{t}": 1.0 for t in range(3)} for s in range(3)}
    assert effect_of(same).chance == 0.25
    assert effect_of({s: dict.fromkeys(v, 0.0) for s, v in same.items()}).chance == 1.0
    assert effect_of({0: {"t": 1.0}}).chance is None


def test_an_effect_repeats_exactly_and_does_not_depend_on_the_order_of_tasks() -> None:
    values = noise(np.random.default_rng(2), 2, 8, (0.1, 0.1, 0.1))
    turned = {s: dict(reversed(by_task.items())) for s, by_task in values.items()}
    assert effect_of(values) == effect_of(turned)


def test_only_what_both_have_is_compared() -> None:
    one = {0: {"a": 1.0, "b": 1.0}, 1: {"a": 1.0}}
    assert difference(one, {0: {"a": 0.25, "c": 0.0}, 2: {"a": 0.0}}) == {0: {"a": 0.75}}
    assert effect_of({0: {"a": 1.0, "b": 9.0}, 1: {"a": 1.0}}).tasks == 1
    with pytest.raises(ValueError, match="at least one task that all seeds have"):
        effect_of({0: {"a": 1.0}, 1: {"b": 1.0}})


def test_holm_on_the_published_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(CHANCES)
def test_a_corrected_chance_is_no_smaller_keeps_the_order_and_counts_what_is_known(
    chances: list[float | None],
) -> None:
    corrected = holm(chances)
    known = [(c, h) for c, h in zip(chances, corrected, strict=True) if c is not None and h is not None]
    assert [h is None for h in corrected] == [c is None for c in chances]
    assert all(c <= h <= 1 for c, h in known)
    assert all(h <= h2 for c, h in known for c2, h2 in known if c <= c2)
    if known:
        smallest, its = min(known)
        assert its == pytest.approx(min(1.0, smallest * len(known)))


def test_an_interval_of_scores_stays_from_0_to_1_and_all_right_may_be_luck() -> None:
    nearly = {s: {f"t{t}": float(t != s) for t in range(6)} for s in range(3)}
    score = score_of(nearly)
    assert score.low is not None
    assert score.high is not None
    assert 0 <= score.low < score.mean <= score.high <= 1
    right = score_of({s: {f"t{t}": 1.0 for t in range(6)} for s in range(3)})
    assert right.mean == right.high == 1.0
    assert right.low is not None
    assert right.low < 0.8
