"""The KL to a reference policy as a price per token, paid out of the reward."""

from __future__ import annotations

import numpy as np

from stages.token_advantages.ragged import Bools, Floats

_LIMIT = 20.0  # nats, as in the loss


def kl_per_token(old: Floats, reference: Floats, mask: Bools, estimator: str) -> Floats:
    """Estimates of KL(old policy ‖ reference) for sampled tokens, (N,); 0 where not `mask`.

    With d = log old - log reference: k1 is d, k2 is d²/2, k3 is exp(-d) - 1 + d
    (http://joschu.net/blog/kl-approx.html). In a reward only k1 is right on average: there the
    estimate is a plain number, and the policy gradient does the rest.
    """
    difference = np.clip(old[mask] - reference[mask], -_LIMIT, _LIMIT)
    if estimator == "k2":
        difference = difference**2 / 2
    elif estimator == "k3":
        difference = np.expm1(-difference) + difference
    out = np.zeros(len(mask))
    out[mask] = difference
    return out
