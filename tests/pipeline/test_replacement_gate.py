"""The gate and the shock of a replacement, against numbers worked out otherwise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.replacement.gate import mcnemar_p, paired, passes, scores_of
from pipeline.replacement.shock import effective_share, shock_of
from workflows.errors import UsageError


def scores(values: list[float]) -> dict[str, float]:
    return {f"t{index}": value for index, value in enumerate(values)}


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=12),
    st.floats(0.6, 0.99),
)
def test_the_bound_is_that_of_a_paired_t_test(pairs: list[tuple[float, float]], confidence: float) -> None:
    before, after = (scores([pair[k] for pair in pairs]) for k in (0, 1))
    found = paired(before, after, confidence=confidence)
    differences = np.array([b - a for a, b in pairs])
    assert found.gain == pytest.approx(differences.mean(), abs=1e-12)
    if found.error > 1e-9:
        p = stats.ttest_1samp(differences, found.lower, alternative="greater").pvalue
        assert p == pytest.approx(1 - confidence, rel=1e-6)


def test_a_team_stays_only_where_what_it_may_have_lost_is_small() -> None:
    before = scores([1.0] * 10 + [0.0] * 10)
    assert passes(paired(before, before, confidence=0.95), eps=0.02)
    one_lost = {**before, "t0": 0.0}
    found = paired(before, one_lost, confidence=0.95)
    assert (found.lost, found.won, found.net_regression, found.gain) == (1, 0, 1, -0.05)
    assert not passes(found, eps=0.02)
    assert passes(found, eps=0.2)
    assert found.shock == pytest.approx(0.1)
    swapped = {**before, "t0": 0.0, "t15": 1.0}  # one for another: nothing lost on average, and no certainty
    assert paired(before, swapped, confidence=0.95).gain == 0
    assert not passes(paired(before, swapped, confidence=0.95), eps=0.02)


def test_teams_that_played_other_tasks_are_not_compared() -> None:
    with pytest.raises(UsageError, match="'t2'"):
        paired(scores([1, 1]), scores([1, 1, 1]), confidence=0.9)
    with pytest.raises(UsageError, match="at least 2 tasks"):
        paired(scores([1]), scores([1]), confidence=0.9)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (3, 0), (5, 2), (4, 4), (12, 1)])
def test_mcnemars_p_is_that_of_the_binomial(lost: int, won: int) -> None:
    expected = 1.0 if not lost + won else stats.binomtest(lost, lost + won).pvalue
    assert mcnemar_p(lost, won) == pytest.approx(expected)


def test_a_score_is_the_mean_of_a_tasks_samples_and_a_failure_is_nothing() -> None:
    rows = [
        {"task_id": "a", "values": [{"name": "m", "value": 1.0}]},
        {"task_id": "a", "values": [{"name": "m", "value": None}]},
        {"task_id": "b", "values": [{"name": "m", "value": 0.5}]},
    ]
    assert scores_of(rows, "m") == {"a": 0.5, "b": 0.5}


def test_effective_shares_are_those_of_the_weights() -> None:
    assert effective_share([0.3, 0.3, 0.3]) == pytest.approx(1)
    assert effective_share([0.0, -1e9]) == pytest.approx(0.5)  # one has everything
    assert effective_share([-50.0, -80.0, -90.0]) == pytest.approx(1 / 3)  # of a stranger: all are tiny
    assert effective_share([]) == 1
    weights = np.exp([0.1, -0.4, 1.0])
    assert effective_share([0.1, -0.4, 1.0]) == pytest.approx(weights.sum() ** 2 / (3 * (weights**2).sum()))


def test_the_shock_tells_who_hears_the_newcomer_from_who_spoke_before_it() -> None:
    """In every episode `first` speaks, then `m`, then `last`; what `m` said is sometimes unlikely now."""
    ratios = {(f"e{i}", 1): -0.5 * i for i in range(4)}
    turns = [(f"e{i}", turn, model) for i in range(4) for turn, model in enumerate(("first", "m", "last"))]
    found = shock_of(ratios, dict.fromkeys(ratios, 2), dict.fromkeys(ratios, 10), turns, "m")
    assert found.per_message == pytest.approx(0.75)
    assert found.error == pytest.approx(np.std([0, 0.5, 1, 1.5], ddof=1) / 2)
    assert (found.per_token, found.per_character) == (pytest.approx(0.375), pytest.approx(0.075))
    by_model = {reach.model: reach for reach in found.teammates}
    weighed = effective_share([-0.5 * i for i in range(4)])
    assert by_model["first"].prefix == 1
    assert by_model["first"].suffix == pytest.approx(weighed)
    assert by_model["last"].prefix == pytest.approx(weighed)
    assert by_model["last"].suffix == 1
    assert found.order == ["last", "first"]
    assert math.isclose(sum(reach.episodes for reach in found.teammates), 8)
    other_words = shock_of(ratios, None, dict.fromkeys(ratios, 10), turns, "m")
    assert other_words.per_token is None
