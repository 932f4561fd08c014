"""The loss of the critic, and how much its values explain."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.credit.moments import Moments
from stages.training.loss.loss import (
    explained_variance,
    value_loss,
)
from stages.training.totals import Totals

law = settings(max_examples=40)


def value_reference(v, old, target, clip):
    held = v if clip is None else old + min(max(v - old, -clip), clip)
    free, bound = (v - target) ** 2, (held - target) ** 2
    return (0.5 * free, v - target) if free >= bound else (0.5 * bound, 0.0)


VALUE = st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2))


@law
@given(st.lists(VALUE, min_size=1, max_size=12), st.sampled_from([None, 0.1, 0.5]), st.data())
def test_value_loss_is_that_of_its_reference_blind_to_masks(tokens, clip, data) -> None:
    expected = [value_reference(*token, clip) for token in tokens]
    place = data.draw(st.integers(0, len(tokens)))
    dirty = [*tokens[:place], (math.nan,) * 3, *tokens[place:]]
    mask = torch.tensor([i != place for i in range(len(dirty))])
    v, old, target = (torch.tensor(c, dtype=torch.float64) for c in zip(*dirty, strict=True))
    v.requires_grad_()
    sums = value_loss(v, old, target, mask, torch.ones(len(dirty), dtype=torch.float64), clip)
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(sum(loss for loss, _ in expected))
    gradient = v.grad.tolist()
    assert gradient.pop(place) == 0
    assert gradient == pytest.approx([slope for _, slope in expected])
    assert sums.num_tokens.item() == len(tokens)


def test_explained_variance_is_1_for_perfect_values_and_0_for_a_constant() -> None:
    def of(values, returns):
        v, r = torch.tensor(values), torch.tensor(returns)
        ones = torch.ones(len(values))
        s = value_loss(v, v, r, ones.bool(), ones, None)
        return explained_variance(s.returns, s.errors)

    assert of([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == pytest.approx(1)
    assert of([5.0, 5.0, 5.0], [1.0, 2.0, 4.0]) == pytest.approx(0)
    assert of([5.0, 4.0], [1.0, 1.0]) is None
    assert explained_variance(Moments(), Moments()) is None


def test_explained_variance_of_returns_far_from_0_is_that_of_returns_near_0() -> None:
    """Sums of squares would lose the variance of these in rounding."""
    values, returns = torch.tensor([1000.0005, 1000.0]), torch.tensor([1000.001, 1000.0])
    s = value_loss(values, values, returns, torch.ones(2).bool(), torch.ones(2), None)
    assert explained_variance(s.returns, s.errors) == pytest.approx(0.75, abs=0.05)
    parts = [
        value_loss(v, v, r, torch.ones(1).bool(), torch.ones(1), None)
        for v, r in zip(values.split(1), returns.split(1), strict=True)
    ]
    total = Totals()
    for part in parts:
        total.add_values(part)
    assert total.measured()["explained_variance"] == pytest.approx(explained_variance(s.returns, s.errors))
    equal = torch.tensor([0.1 + 0.2, 0.3, 0.6 - 0.3])
    s = value_loss(equal * 0, equal * 0, equal, torch.ones(3).bool(), torch.ones(3), None)
    assert explained_variance(s.returns, s.errors) is None
