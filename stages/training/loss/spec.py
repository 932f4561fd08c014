"""What an update optimises, as plain values: which loss, which critic, which anchor. No torch here.

Settings and the plan import this; `stages.training.loss.loss` has the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, get_args

from workflows.errors import UsageError, did_you_mean

Normalisation = Literal["token_mean", "sequence_mean", "fixed_length"]
KlEstimator = Literal["k1", "k2", "k3"]
Schedule = Literal["constant", "linear", "cosine"]
LOSSES: Final = ("ppo", "gspo", "message", "cispo", "clip_cov", "kl_cov", "policy_gradient", "supervised")
STOP_LOSSES: Final = ("hazard", "all_action")
CHOOSE_TOKENS: Final = ("clip_cov", "kl_cov")  # losses that hold back the tokens of high covariance


@dataclass(frozen=True, slots=True)
class RoleLoss:
    """What one role's tokens have of their own in the loss; None is the model's value.

    `weight` multiplies the whole loss of the role's tokens, not the count that the loss is divided by.
    """

    clip_low: float | None = None
    clip_high: float | None = None
    kl_coefficient: float | None = None
    entropy_coefficient: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LossSpec:
    """The loss of one model.

    `name` is one of `LOSSES`, or `package.module:function` (see `losses.policy_loss`).

    `normalisation` says what the sum over response tokens is divided by, over the whole optimizer step
    and all ranks: "token_mean" by the number of response tokens; "sequence_mean" takes each response's
    own mean and divides by the number of responses (as GSPO and the first GRPO do); "fixed_length"
    divides by responses × `fixed_length`, so that a response's weight does not depend on its length
    (Dr. GRPO, arXiv:2503.20783).

    Raises:
        UsageError: a value that no update can run with.
    """

    name: str = "ppo"
    clip_low: float = 0.2  # ratios below 1 - clip_low are clipped; 1 is off, a ratio is never negative
    clip_high: float = 0.2
    dual_clip: float | None = 3.0  # ppo only; None is off
    normalisation: Normalisation = "token_mean"
    fixed_length: int | None = None  # tokens
    entropy_coefficient: float = 0.0  # the loss minus this times the mean token entropy, in nats
    kl_coefficient: float = 0.0  # the loss plus this times KL(policy ‖ reference)
    kl_estimator: KlEstimator = "k3"  # of the value that is logged; the gradient is the same for all
    roles: Mapping[str, RoleLoss] = field(default_factory=dict)
    cov_share: float = 0.0  # of clip_cov and kl_cov: share of a step's tokens that are held back
    cov_low: float = 1.0  # of clip_cov: covariances between these are held back
    cov_high: float = 5.0
    cov_kl_coefficient: float = 1.0  # of kl_cov: price of the KL to the old policy of these tokens
    stop_loss: str = ""  # of stop decisions (`losses.stopping`); empty: they have none of their own
    stop_coefficient: float = 1.0  # of that loss, a mean over traces, beside the loss of tokens

    later: ClassVar[frozenset[str]] = frozenset(
        {"cov_share", "cov_low", "cov_high", "cov_kl_coefficient", "stop_loss", "stop_coefficient"}
    )
    """Fields that a version after the first runs added: with their default they are in no fingerprint."""

    def __post_init__(self) -> None:
        if ":" not in self.name and self.name not in LOSSES:
            raise UsageError(
                f"there is no loss {self.name!r}{did_you_mean(self.name, LOSSES)}; use one of "
                f"{', '.join(LOSSES)}, or package.module:function"
            )
        _one_of("normalisation", self.normalisation, get_args(Normalisation))
        _one_of("kl_estimator", self.kl_estimator, get_args(KlEstimator))
        if self.normalisation == "fixed_length" and not (self.fixed_length and self.fixed_length > 0):
            raise UsageError('normalisation = "fixed_length" needs fixed_length, a number of tokens')
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise UsageError(f"dual_clip is {self.dual_clip}; use a number above 1, or leave it out")
        if self.chooses_tokens and not 0 < self.cov_share <= 1:
            raise UsageError(f"cov_share is {self.cov_share}; use a share above 0, at most 1")
        if not self.cov_low < self.cov_high:
            raise UsageError(
                f"cov_low is {self.cov_low} and cov_high {self.cov_high}; use cov_low < cov_high"
            )
        for name in ("cov_kl_coefficient", "stop_coefficient"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise UsageError(f"{name} is {getattr(self, name)}; use 0 or more")
        if self.stop_loss:
            _one_of("stop_loss", self.stop_loss, STOP_LOSSES)
        for role in (None, *self.roles):
            terms = self.of(role)
            where = f"role {role!r}: " if role is not None else ""
            for name, low, high in _RANGES:
                value = getattr(terms, name)
                if not (low <= value <= high and math.isfinite(value)):
                    raise UsageError(
                        f"{where}{name} is {value}; use a number from {low:g}"
                        + (f" to {high:g}" if math.isfinite(high) else " up")
                    )

    def of(self, role: str | None) -> RoleLoss:
        """The terms of a role with nothing left None."""
        override = self.roles.get(role) if role is not None else None
        values: dict[str, Any] = {
            "clip_low": self.clip_low,
            "clip_high": self.clip_high,
            "kl_coefficient": self.kl_coefficient,
            "entropy_coefficient": self.entropy_coefficient,
            "weight": 1.0,
        }
        if override is not None:
            given = {f.name: getattr(override, f.name) for f in fields(override)}
            values |= {name: value for name, value in given.items() if value is not None}
        return RoleLoss(**values)

    def with_kl_scale(self, scale: float) -> LossSpec:
        """The same with every KL coefficient times `scale`."""
        if scale == 1:
            return self
        roles = {
            name: replace(terms, kl_coefficient=terms.kl_coefficient * scale)
            if terms.kl_coefficient is not None
            else terms
            for name, terms in self.roles.items()
        }
        return replace(self, kl_coefficient=self.kl_coefficient * scale, roles=roles)

    @property
    def chooses_tokens(self) -> bool:
        """Whether some tokens of each optimizer step are chosen before it: `TokenBatch.chosen`."""
        return self.name in CHOOSE_TOKENS

    @property
    def needs_reference(self) -> bool:
        """Whether the loss has a KL term, and so needs `reference_logprobs`."""
        return any(self.of(role).kl_coefficient for role in (None, *self.roles))

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss has an entropy bonus, and so needs token entropies with a graph."""
        return any(self.of(role).entropy_coefficient for role in (None, *self.roles))


@dataclass(frozen=True, slots=True)
class CriticSpec:
    """Where the values come from.

    "head" is a linear layer on the model's own last hidden state, trained with it: its loss is added
    with `coefficient`. "model" is a network of its own, with its own optimizer, that starts from
    `checkpoint` (None: the model's own initial weights). Either has one value head for all rows, or one for
    each of `roles`, on the same trunk.

    Raises:
        UsageError: a value that no critic can be trained with.
    """

    kind: Literal["head", "model"] = "head"
    checkpoint: str | None = None
    learning_rate: float = 1e-5
    value_clip: float | None = 0.5  # how far a value may move from the one before the update; None is off
    coefficient: float = 0.5
    warmup_updates: int = 0  # updates in which the critic learns and the policy does not move
    roles: tuple[str, ...] = ()  # that have a value head each; empty: one head for all

    later: ClassVar[frozenset[str]] = frozenset({"roles"})
    """Fields that a version after the first runs added: with their default they are in no fingerprint."""

    def __post_init__(self) -> None:
        _one_of("critic kind", self.kind, ("head", "model"))
        if self.kind == "head" and self.checkpoint is not None:
            raise UsageError('a critic of kind "head" has no checkpoint of its own; use kind = "model"')
        if len(set(self.roles)) < len(self.roles):
            raise UsageError(f"critic roles are {', '.join(self.roles)}; name each role once")
        if self.value_clip is not None and not self.value_clip > 0:
            raise UsageError(f"value_clip is {self.value_clip}; use a number above 0, or leave it out")
        for name in ("learning_rate", "coefficient", "warmup_updates"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"critic {name} is {value}; use 0 or more")


@dataclass(frozen=True, slots=True)
class ReferenceSpec:
    """The frozen anchor of the KL terms: `checkpoint`, or "initial", the model's weights at version 0."""

    checkpoint: str = "initial"


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """The learning rate over updates, as a share of the configured one.

    A function of the policy version alone, so that nothing about it has to be stored: it rises
    linearly over `warmup_updates`, then stays ("constant") or falls to `final_share` at
    `total_updates`, in a straight line or half a cosine, and stays there.

    Raises:
        UsageError: a schedule that falls without saying until when, or a number out of range.
    """

    kind: Schedule = "constant"
    warmup_updates: int = 0
    total_updates: int | None = None
    final_share: float = 0.0

    def __post_init__(self) -> None:
        _one_of("schedule", self.kind, get_args(Schedule))
        if self.warmup_updates < 0:
            raise UsageError(f"warmup_updates is {self.warmup_updates}; use 0 or more")
        if not 0 <= self.final_share <= 1:
            raise UsageError(f"final_share is {self.final_share}; use a share from 0 to 1")
        if self.kind != "constant" and (
            self.total_updates is None or self.total_updates <= self.warmup_updates
        ):
            raise UsageError(
                f"schedule {self.kind!r} needs total_updates, above warmup_updates ({self.warmup_updates}); "
                f"got {self.total_updates}"
            )

    def share(self, version: int) -> float:
        """The share for the update that starts from `version`; in [0, 1], above 0 during warm-up."""
        if version < self.warmup_updates:
            return (version + 1) / (self.warmup_updates + 1)
        if self.kind == "constant" or self.total_updates is None:
            return 1.0
        done = min(1.0, (version - self.warmup_updates) / (self.total_updates - self.warmup_updates))
        left = 1 - done if self.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final_share + (1 - self.final_share) * left


_RANGES: Final = (
    ("clip_low", 0.0, 1.0),
    ("clip_high", 0.0, math.inf),
    ("kl_coefficient", 0.0, math.inf),
    ("entropy_coefficient", 0.0, math.inf),
    ("weight", 0.0, math.inf),
)


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} is {value!r}{did_you_mean(value, known)}; use one of {', '.join(known)}")
