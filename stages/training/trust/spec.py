"""A trust region as plain values: its radius, how it is measured and enforced, and what blocks hand on.

Divergences are between the policy at the start of a block, which sampled its rows, and the policy that an
update has made of it. What each enforcement does is in `stages.training.region`. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from workflows.errors import UsageError

Measure = Literal["token", "message", "episode"]
Estimator = Literal["k1", "k3", "exact"]
Direction = Literal["start_to_new", "new_to_start"]

ACCEPTED: Final = "accepted"
PARTLY: Final = "partly"
REJECTED: Final = "rejected"
BAND: Final = 1.5  # a penalty's coefficient stays while the divergence is within this factor of the radius
MOST_SCALE: Final = 1024.0  # how far a coefficient may leave its setting, either way


@dataclass(frozen=True, slots=True)
class TrustSpec:
    """The trust region of one model; `settings.training.TrustSection` says what each key is.

    Raises:
        UsageError: a value that no update can keep to.
    """

    radius: float
    measure: Measure = "message"
    estimator: Estimator = "k3"
    top_k: int = 64
    direction: Direction = "start_to_new"
    quantile: float = 0.0
    share: float = 1.0
    penalty: float = 0.0
    stop_at: float = 0.0
    mask_above: float = 0.0
    backtrack: int = 0
    reject: bool = False
    certificate: bool = False
    z: float = 1.64
    tolerance: float = 0.0
    return_range: float = 1.0
    trial_tasks: int = 0
    trial_samples: int = 1

    def __post_init__(self) -> None:
        if not (self.radius > 0 and math.isfinite(self.radius)):
            raise UsageError(f"trust_region.radius is {self.radius}; use nats above 0, for example 0.01")
        if not 0 < self.share <= 1:
            raise UsageError(f"trust_region.share is {self.share}; use a share above 0, up to 1 (all rows)")
        if self.share < 1 and (self.measure == "episode" or self.certificate):
            what = 'measure = "episode"' if self.measure == "episode" else "certificate = true"
            raise UsageError(
                f"trust_region.share is {self.share}, and {what} needs all rows of an episode; use share = 1"
            )

    @property
    def estimator_of_samples(self) -> Literal["k1", "k3"]:
        """The estimator where only sampled tokens are at hand, as in a step's own pass."""
        return "k1" if self.estimator == "k1" else "k3"

    @property
    def judges(self) -> bool:
        """Whether an update may be taken back, in part or whole."""
        return self.reject or self.backtrack > 0


@dataclass(frozen=True, slots=True)
class TrustState:
    """What an update begins with, and of one that is made again what was decided then.

    `shrink` multiplies the radius and `scale` the penalty's coefficient. `spent` is the highest number that a
    candidate has had.
    """

    shrink: float = 1.0
    scale: float = 1.0
    spent: int = 0
    recorded: Recorded | None = None

    def candidate(self, version: int) -> int:
        """The number of the weights that an update makes of those of `version`."""
        if self.recorded is not None:
            return self.recorded.candidate
        return max(version, self.spent) + 1

    @property
    def identity(self) -> str:
        """What of it makes an update another one."""
        return f"{self.shrink!r} {self.scale!r} {self.spent}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was decided of an update: applied when it is made again, and not judged anew."""

    candidate: int
    steps: int  # optimizer steps that were made
    kept_share: float  # of the step, in weights


def state_before(rows: list[dict[str, Any]]) -> TrustState:
    """The state that the table `trust/<model>` of an earlier block leaves; a new one where it has no rows."""
    if not rows:
        return TrustState()
    (row,) = rows
    return TrustState(row["next_shrink"], row["next_scale"], row["candidate_version"])


def state_recorded(rows: list[dict[str, Any]]) -> TrustState:
    """The state of an update that is made again, by the table `trust/<model>` that it wrote."""
    (row,) = rows
    recorded = Recorded(row["candidate_version"], row["steps"], row["kept_share"])
    return TrustState(row["shrink"], row["scale"], row["spent_before"], recorded)


def state_after(spec: TrustSpec, state: TrustState, decision: str, divergence: float) -> TrustState:
    """The radius and the coefficient of the next block, by what was decided and how far the whole step went.

    A rejected update halves the radius, and one that is accepted whole doubles a halved one. The coefficient
    doubles where the divergence is more than 1.5 times the radius, and halves where it is less than a 1.5th.
    Source: the adaptive penalty of PPO, arXiv:1707.06347, section 4.
    """
    shrink, scale, radius = state.shrink, state.scale, spec.radius * state.shrink
    if decision == REJECTED:
        shrink /= 2
    elif decision == ACCEPTED:
        shrink = min(1.0, shrink * 2)
    if spec.penalty and divergence > BAND * radius:
        scale = min(scale * 2, MOST_SCALE)
    elif spec.penalty and divergence < radius / BAND:
        scale = max(scale / 2, 1 / MOST_SCALE)
    return replace(state, shrink=shrink, scale=scale)


def told(row: Mapping[str, Any]) -> str:
    """One line for people: what became of a candidate, and why."""
    where = f"candidate {row['candidate_version']} of model {row['model_id']!r}"
    far = f"{row['whole_divergence']:.3g} nats per {row['measure']}, radius {row['radius']:.3g}"
    if row["decision"] == REJECTED:
        return f"{where} is rejected ({row['reason']}; {far}): weights and optimizer are those of before"
    if row["decision"] == PARTLY:
        return f"{where} is accepted in part ({row['reason']}; {far})"
    return f"{where} is accepted ({far})"
