"""Losses and schedules that can not be, and how schedules run."""

import math

import pytest
from hypothesis import settings

from stages.training.loss.spec import LossSpec, RoleLoss, ScheduleSpec
from workflows.errors import UsageError

law = settings(max_examples=40)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "pppo"}, "'ppo'"),
        ({"normalisation": "mean"}, "token_mean"),
        ({"kl_estimator": "k3+"}, "k1, k2, k3"),
        ({"normalisation": "fixed_length"}, "fixed_length, a number"),
        ({"dual_clip": 1.0}, "above 1"),
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"kl_coefficient": -1.0}, "kl_coefficient is -1"),
        ({"name": "clip_cov"}, "cov_share is 0.0; use a share above 0"),
        ({"name": "clip-cov"}, "'clip_cov'"),
        ({"cov_low": 5.0}, "cov_low < cov_high"),
        ({"cov_kl_coefficient": -1.0}, "cov_kl_coefficient is -1"),
        ({"roles": {"a": RoleLoss(weight=math.nan)}}, "role 'a': weight is nan"),
    ],
)
def test_losses_that_can_not_be_are_refused(wrong, words) -> None:
    """Fault A27: unknown names when the settings are read, not at the first step."""
    with pytest.raises(UsageError, match=words.replace("+", r"\+")):
        LossSpec(**wrong)


def test_schedules_rise_from_above_zero_and_fall_to_their_end() -> None:
    flat = ScheduleSpec(warmup_updates=3)
    assert [flat.share(v) for v in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    for kind, half in (("linear", 0.55), ("cosine", 0.55)):
        falling = ScheduleSpec(kind, warmup_updates=2, total_updates=12, final_share=0.1)
        shares = [falling.share(v) for v in range(2, 20)]
        assert shares == sorted(shares, reverse=True)
        assert (shares[0], shares[5], shares[10], shares[-1]) == pytest.approx((1, half, 0.1, 0.1))
    with pytest.raises(UsageError, match="total_updates"):
        ScheduleSpec("cosine", warmup_updates=5, total_updates=5)
