"""Losses: right against a float64 reference, blind to masked values, the same for every cut."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.losses import clipped_surrogate, k3, masked_sum, sampler_gap

CLIP = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0}
law = settings(deadline=None, max_examples=60)


def reference(new, old, advantages, *, clip_low, clip_high, dual_clip):
    """The formula in plain words, one token at a time; returns the summed loss and its gradient in `new`."""
    loss, gradient = 0.0, []
    for n, o, a in zip(new, old, advantages, strict=True):
        r = math.exp(n - o)
        clipped = min(max(r, 1 - clip_low), 1 + clip_high)
        value, slope = (-a * r, -a * r) if -a * r >= -a * clipped else (-a * clipped, 0.0)
        if dual_clip is not None and a < 0 and value > -a * dual_clip:
            value, slope = -a * dual_clip, 0.0
        loss, gradient = loss + value, [*gradient, slope]
    return loss, gradient


def surrogate(new, old, advantages, mask=None, **clip):
    new = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(len(new), dtype=torch.bool) if mask is None else torch.tensor(mask)
    old, advantages = torch.tensor(old, dtype=torch.float64), torch.tensor(advantages, dtype=torch.float64)
    sums = clipped_surrogate(new, old, advantages, mask, **{**CLIP, **clip})
    sums.loss.backward()
    return sums, new.grad.tolist()


TOKEN = st.tuples(st.floats(-6, 0), st.floats(-6, 0), st.floats(-3, 3))


@law
@given(st.lists(TOKEN, min_size=1, max_size=20), st.sampled_from([None, 1.5, 3.0]))
def test_loss_and_gradient_are_those_of_the_reference(tokens, dual_clip) -> None:
    new, old, advantages = (list(c) for c in zip(*tokens, strict=True))
    sums, gradient = surrogate(new, old, advantages, dual_clip=dual_clip)
    loss, expected = reference(new, old, advantages, **{**CLIP, "dual_clip": dual_clip})
    assert sums.loss.item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert gradient == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_dual_clip_bounds_a_negative_advantage_and_nothing_else() -> None:
    ten = math.log(10)
    assert surrogate([ten], [0.0], [-1.0])[0].loss.item() == pytest.approx(3)
    assert surrogate([ten], [0.0], [-1.0], dual_clip=None)[0].loss.item() == pytest.approx(10)
    assert surrogate([ten], [0.0], [1.0])[0].loss.item() == pytest.approx(-1.3)


def test_a_ratio_beyond_all_limits_stays_finite_and_is_pushed_back() -> None:
    sums, gradient = surrogate([0.0], [-500.0], [-1.0], dual_clip=None)
    assert math.isfinite(sums.loss.item())
    assert gradient[0] > 0  # descent lowers the new logprob


def test_a_policy_that_has_not_moved_is_not_clipped_and_gets_the_policy_gradient() -> None:
    sums, gradient = surrogate([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.25])
    assert (sums.clipped.item(), sums.kl_old.item(), sums.ratio_max.item()) == (0, 0, 1)
    assert gradient == [-0.5, 0.25]


@law
@given(
    st.lists(TOKEN, min_size=1, max_size=20),
    st.floats(allow_nan=True, allow_infinity=True),
    st.data(),
)
def test_what_is_masked_changes_nothing(tokens, junk, data) -> None:
    new, old, advantages = (list(c) for c in zip(*tokens, strict=True))
    clean, gradient = surrogate(new, old, advantages)
    place = data.draw(st.integers(0, len(tokens)))

    def with_junk(values):
        return [*values[:place], junk, *values[place:]]

    mask = [i != place for i in range(len(tokens) + 1)]
    dirty, dirty_gradient = surrogate(with_junk(new), with_junk(old), with_junk(advantages), mask)
    for name in ("loss", "num_tokens", "kl_old", "clipped", "ratio_max"):
        assert getattr(dirty, name).item() == pytest.approx(getattr(clean, name).item(), rel=1e-12)
    assert dirty_gradient.pop(place) == 0
    assert dirty_gradient == gradient


def test_no_token_at_all_gives_zero_and_a_finite_gradient() -> None:
    sums, gradient = surrogate([math.nan], [math.inf], [1.0], [False])
    assert (sums.loss.item(), sums.num_tokens.item(), gradient) == (0, 0, [0.0])
    assert masked_sum(torch.tensor([1.0, math.nan]), torch.tensor([True, False])).item() == 1


@law
@given(st.lists(TOKEN, min_size=2, max_size=20), st.data())
def test_sums_and_gradients_add_up_over_any_cut(tokens, data) -> None:
    new, old, advantages = (list(c) for c in zip(*tokens, strict=True))
    whole, gradient = surrogate(new, old, advantages)
    cut = data.draw(st.integers(1, len(tokens) - 1))
    parts = [surrogate(new[s], old[s], advantages[s]) for s in (slice(cut), slice(cut, None))]
    for name in ("loss", "num_tokens", "kl_old", "clipped"):
        assert sum(getattr(p, name).item() for p, _ in parts) == pytest.approx(
            getattr(whole, name).item(), abs=1e-9, rel=1e-9
        )
    assert max(p.ratio_max.item() for p, _ in parts) == whole.ratio_max.item()
    assert [g for _, part in parts for g in part] == gradient


def test_k3_has_its_known_values_and_the_gap_its_definition() -> None:
    assert k3(torch.tensor([0.5, -0.5, 0.0])).tolist() == pytest.approx([0.14872, 0.10653, 0.0], abs=1e-5)
    gap = sampler_gap(
        torch.tensor([-1.0, -2.0, 9.0]),
        torch.tensor([-1.5, -1.5, math.nan]),
        torch.tensor([True, True, False]),
    )
    assert (gap.absolute.item(), gap.maximum.item(), gap.num_tokens.item()) == (1.0, 0.5, 2.0)
    assert gap.kl.item() == pytest.approx(0.14872 + 0.10653, abs=1e-5)
