"""A coefficient of the KL term that steers the KL to a target: from iteration to iteration, by proportion.

    e = clip(KL / target - 1, -0.2, 0.2)        scale ← scale · (1 + step · e)

The scale multiplies every KL coefficient of a model, those of its roles too; it is 1 in a run's first
iteration. The KL is that of the policy which sampled the iteration, per token, measured from its scores, so
the scale that an iteration leaves behind acts from the next one on.
Source: the proportional controller in log space of Ziegler et al., arXiv:1909.08593, section 2.2, whose KL is
of whole replies; there step is 0.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rewards.credit.moments import Moments
from workflows.errors import UsageError
from workflows.trajectory import KL_SCALE, rows_to_table

MOST: Final = 0.2  # of the relative error


@dataclass(frozen=True, slots=True)
class KlControl:
    """Where the KL of one model shall be, in nats per token, and how fast its coefficient follows.

    `coefficient` is the largest of the model's own and its roles', for the log; `estimator` is of the KL.

    Raises:
        UsageError: a value that steers nowhere.
    """

    target: float
    step: float = 0.1
    coefficient: float = 1.0
    estimator: str = "k3"

    def __post_init__(self) -> None:
        for name in ("target", "step"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"kl_{name} is {value}; use a number above 0")
        if self.step * MOST >= 1:
            raise UsageError(f"kl_step is {self.step}; use a number below {1 / MOST:g}")

    def after(self, scale: float, kl: float | None) -> float:
        """The scale that follows `scale`, by the measured KL; unchanged where none was measured."""
        if kl is None:
            return scale
        return scale * (1 + self.step * min(max(kl / self.target - 1, -MOST), MOST))


def scale_before(table: pa.Table) -> float:
    """The scale that an earlier iteration's `KL_SCALE` table leaves behind; 1 where it has no rows."""
    return float(table["next_scale"][0].as_py()) if table.num_rows else 1.0


def scale_table(control: KlControl, model_id: str, scale: float, measured: Moments, at: Any) -> pa.Table:
    """The `KL_SCALE` table of an iteration that used `scale`; `at` are the columns that say which it is."""
    kl = measured.mean if measured.count else None
    row = {
        **at,
        "model_id": model_id,
        "scale": scale,
        "kl": kl,
        "target": control.target,
        "next_scale": control.after(scale, kl),
    }
    return rows_to_table([row], KL_SCALE)
