"""Estimates of the KL to a reference, and the gap to the sampler."""

import math

import pytest
import torch
from hypothesis import settings

from stages.training.loss.kl import k3, kl_estimate, masked_sum, sampler_gap

law = settings(max_examples=40)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_term_pulls_towards_the_reference_by_the_gradient_of_the_true_kl(estimator) -> None:
    """Faults A25 to A28. Summed over a whole vocabulary with its probabilities, the estimate is the KL,
    and its gradient in the logits is that of the KL (k2's value is only close to it)."""
    logits = torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    anchor = torch.tensor([0.1, 0.4, 0.2, -0.3], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    exact = torch.nn.functional.kl_div(anchor, logprobs, reduction="sum", log_target=True)
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    chance = logprobs.detach().exp()
    estimate = (chance * kl_estimate(logprobs, anchor, estimator)).sum()
    (gradient,) = torch.autograd.grad(estimate, logits)
    assert gradient.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert estimate.item() == pytest.approx(exact.item(), rel=1e-9 if estimator != "k2" else 0.2)


def test_kl_estimators_have_their_known_values_and_no_limit_kills_their_gradient() -> None:
    """Faults A26, A28."""
    new = torch.tensor([0.5, -0.5, 300.0], requires_grad=True)
    for estimator, expected in (
        ("k1", [0.5, -0.5]),
        ("k2", [0.125, 0.125]),
        ("k3", [0.10653, 0.14872]),
    ):
        values = kl_estimate(new, torch.zeros(3), estimator)
        assert values[:2].tolist() == pytest.approx(expected, abs=1e-5)
        (gradient,) = torch.autograd.grad(values.sum(), new)
        assert gradient.tolist() == [0.5, -0.5, 20.0]
    assert k3(torch.tensor([0.5, -0.5, 0.0])).tolist() == pytest.approx([0.14872, 0.10653, 0.0], abs=1e-5)


def test_masked_sum_and_the_sampler_gap() -> None:
    assert masked_sum(torch.tensor([1.0, math.nan]), torch.tensor([True, False])).item() == 1
    gap = sampler_gap(
        torch.tensor([-1.0, -2.0, 9.0]),
        torch.tensor([-1.5, -1.5, math.nan]),
        torch.tensor([True, True, False]),
    )
    assert (gap.absolute.item(), gap.maximum.item(), gap.num_tokens.item()) == (1.0, 0.5, 2.0)
    assert gap.kl.item() == pytest.approx(0.14872 + 0.10653, abs=1e-5)
