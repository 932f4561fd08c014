"""The loss of a reward model against what is written down by hand, in float64."""

import math

import pytest
import torch

from stages.training.loss.pairs import pair_gradient, pair_loss

SCORES = torch.tensor([0.3, -1.2, 2.0, 0.5], dtype=torch.float64)
WINNERS, LOSERS = torch.tensor([0, 2, 2, 1]), torch.tensor([1, 1, 3, 3])


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("centring", [0.0, 0.01])
def test_loss_and_gradient_are_those_by_hand(centring) -> None:
    scores = SCORES.tolist()
    loss, by_hand = 0.0, [0.0] * 4
    for winner, loser in zip(WINNERS.tolist(), LOSERS.tolist(), strict=True):
        gap, both = scores[winner] - scores[loser], scores[winner] + scores[loser]
        loss += (-math.log(sigma(gap)) + centring * both**2) / 4
        by_hand[winner] += (-sigma(-gap) + 2 * centring * both) / 4
        by_hand[loser] += (sigma(-gap) + 2 * centring * both) / 4
    gradient, sums = pair_gradient(SCORES, WINNERS, LOSERS, centring)
    assert float(sums.loss.detach()) == pytest.approx(loss, rel=1e-14)
    assert gradient.tolist() == pytest.approx(by_hand, rel=1e-13)
    assert sums.right == 0.75  # 1 over 3 is in the wrong order
    assert sums.margin == pytest.approx((1.5 + 3.2 + 1.5 - 1.7) / 4)


def test_without_centring_a_shift_of_all_scores_changes_nothing_and_far_gaps_are_finite() -> None:
    gradient, sums = pair_gradient(SCORES, WINNERS, LOSERS)
    moved, of_moved = pair_gradient(SCORES + 5, WINNERS, LOSERS)
    assert torch.allclose(gradient, moved, atol=1e-12)
    assert float(sums.loss.detach()) == pytest.approx(float(of_moved.loss.detach()))
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-15)
    far = pair_loss(torch.tensor([-1e4, 1e4], dtype=torch.float64), torch.tensor([0]), torch.tensor([1]))
    assert float(far.loss) == pytest.approx(2e4)
    assert pair_loss(torch.zeros(2), torch.tensor([0]), torch.tensor([1])).right == 0.5


def test_each_score_times_its_gradient_trains_as_the_whole_loss_does() -> None:
    features = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    head = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(pair_loss(features @ head, WINNERS, LOSERS).loss, head)
    gradient, _ = pair_gradient(features @ head, WINNERS, LOSERS)
    parts = [torch.autograd.grad((gradient[i] * (features[i] @ head)), head)[0] for i in range(4)]
    assert torch.allclose(whole, torch.stack(parts).sum(0), atol=1e-15)
