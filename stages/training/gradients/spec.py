"""What is measured of a gradient by role, and what it may be changed by, as plain values. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from workflows.errors import UsageError, did_you_mean

Detail = Literal["off", "estimate", "exact"]
MOST_COPIES: Final = 8  # copies of a role that are told apart; with more branches it is one part
MOST_DAMPING: Final = 0.5  # near 1 a unit freezes: its running mean never leaves the first direction


@dataclass(frozen=True, slots=True)
class MeasureSpec:
    """What a trainer measures of each role.

    "exact" keeps the gradient of every role in float32, and so needs the memory of that many gradients;
    "estimate" keeps a fixed random projection of each (`stages.training.gradients.projection`).

    Raises:
        UsageError: a value that can't be measured with.
    """

    gradients: Detail = "off"
    window: int = 32  # optimizer steps of the running mean that a role's gradient is compared with
    drift: bool = False  # KL to the reference on one micro-batch of each role, where the loss has no KL

    def __post_init__(self) -> None:
        if self.gradients not in get_args(Detail):
            raise UsageError(
                f"gradients is {self.gradients!r}{did_you_mean(self.gradients, get_args(Detail))}; "
                f"use one of {', '.join(get_args(Detail))}"
            )
        if self.window < 1:
            raise UsageError(f"the measure's window is {self.window}; use 1 or more optimizer steps")

    @property
    def is_on(self) -> bool:
        return self.gradients != "off"


@dataclass(frozen=True, slots=True)
class ShapingSpec:
    """What changes a gradient before it is clipped; the defaults change nothing.

    Raises:
        UsageError: a value that would freeze a model, or means nothing.
    """

    coherence_damping: float = 0.0  # λ: see `stages.training.gradients.damping`
    coherence_window: int = 32  # optimizer steps of the running mean that it is damped by
    max_role_share: float = 1.0  # of the mass, by any role of the model; 1 is off
    damp_copies: bool = False  # N copies that agree count as √N

    def __post_init__(self) -> None:
        if not 0 <= self.coherence_damping <= MOST_DAMPING:
            raise UsageError(
                f"coherence_damping is {self.coherence_damping}; use 0 (off) to {MOST_DAMPING}: above "
                "that a model may freeze, because it is damped for the direction that it has always had"
            )
        if self.coherence_window < 1:
            raise UsageError(f"coherence_window is {self.coherence_window}; use 1 or more optimizer steps")
        if not (0 < self.max_role_share <= 1 and math.isfinite(self.max_role_share)):
            raise UsageError(f"max_role_share is {self.max_role_share}; use a share above 0, up to 1 (off)")

    @property
    def by_part(self) -> bool:
        """Whether it needs the gradient of each role, and not only the sum."""
        return self.damp_copies or self.max_role_share < 1
