"""The mixture that a newcomer is taught, against its formula written down in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.loss.mixture import largest_exponent, mixture, weight_of


def policies(seed: int, states: int = 6, tokens: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities of an incumbent and a newcomer, float64."""
    draw = torch.Generator().manual_seed(seed)
    spread = 3 * torch.rand(2, generator=draw, dtype=torch.float64)[:, None, None]
    both = torch.randn(2, states, tokens, generator=draw, dtype=torch.float64) * spread
    old, new = both.log_softmax(-1)
    return old, new


def by_formula(old: torch.Tensor, new: torch.Tensor, weight: float) -> torch.Tensor:
    """incumbent^(1/(1+λ)) newcomer^(λ/(1+λ)), divided by its sum."""
    product = old.exp() ** (1 / (1 + weight)) * new.exp() ** (weight / (1 + weight))
    return product / product.sum(-1, keepdim=True)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum(-1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), weight=st.floats(0.01, 100.0))
def test_the_mixture_is_the_weighted_product_of_both_policies(seed: int, weight: float) -> None:
    old, new = policies(seed)
    found = mixture(old, new, torch.full((len(old),), weight / (1 + weight), dtype=old.dtype))
    torch.testing.assert_close(found.exp(), by_formula(old, new, weight), atol=1e-12, rtol=1e-10)
    assert weight_of(torch.tensor(weight / (1 + weight), dtype=torch.float64)) == pytest.approx(weight)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), bound=st.floats(1e-4, 0.5))
def test_the_newcomer_keeps_as_much_of_itself_as_the_bound_allows(seed: int, bound: float) -> None:
    old, new = policies(seed)
    exponent = largest_exponent(old, new, bound, steps=50)
    moved = kl(old, mixture(old, new, exponent))
    assert bool((moved <= bound * (1 + 1e-6) + 1e-12).all())
    for state, share in enumerate(exponent):
        if share == 1:
            assert kl(old, new)[state] <= bound  # all of it
        else:
            assert moved[state] == pytest.approx(bound, rel=1e-5)  # and not less than it may


def test_both_ends_are_the_policies_themselves() -> None:
    old, new = policies(3)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for end, policy in zip(ends, (old, new), strict=True):
        torch.testing.assert_close(mixture(old, new, end.expand(len(old))), policy)
    assert bool((largest_exponent(old, old, 1e-9) == 1).all())
    assert float(weight_of(ends)[1]) == float("inf")


def test_what_the_loss_asks_for_is_the_gradient_of_a_softmax_taught_that_target() -> None:
    old, new = policies(5)
    target = mixture(old, new, largest_exponent(old, new, 0.05))
    logits = new.clone().requires_grad_()
    loss = (target.exp() * (target - logits.log_softmax(-1))).sum()
    loss.backward()
    torch.testing.assert_close(logits.grad, new.softmax(-1) - target.exp(), atol=1e-12, rtol=1e-9)
