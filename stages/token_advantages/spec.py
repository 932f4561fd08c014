"""What the advantage stage is to do, as plain values, and which scores that takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, get_args

from stages.token_advantages.gae import Gae
from stages.token_advantages.importance import Correction, Importance, Level
from stages.token_advantages.kl_control import KlControl
from workflows.errors import UsageError, did_you_mean

Method = Literal["from_credit", "gae"]
Whiten = Literal["none", "model", "role"]
Need = Literal["old", "reference", "values", "bootstrap_turns", "bootstrap_episodes"]
BOOTSTRAPS: Final[tuple[Need, ...]] = ("bootstrap_turns", "bootstrap_episodes")
"""Values after the last token: of turns that were cut off, or of the last turns of episodes that were."""
ESTIMATORS: Final = ("k1", "k2", "k3")


@dataclass(frozen=True, slots=True)
class RewardKl:
    """KL to the reference as a price per token, by role; a role that is not named pays `coefficient`."""

    coefficient: float = 0.0
    roles: Mapping[str, float] = field(default_factory=dict)
    estimator: Literal["k1", "k2", "k3"] = "k1"

    def of(self, role: str) -> float:
        return self.roles.get(role, self.coefficient)

    def scaled(self, scale: float) -> RewardKl:
        """The same at `scale` times the price."""
        roles = {role: price * scale for role, price in self.roles.items()}
        return RewardKl(self.coefficient * scale, roles, self.estimator)

    @property
    def is_on(self) -> bool:
        return any((self.coefficient, *self.roles.values()))


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """How one model's turns become token advantages.

    - `use`: "from_credit" gives every token of a turn the turn's advantage; "gae" takes the turn's
      reward and the critic's values (`stages.token_advantages.gae`).
    - `whiten`: to mean 0 and deviation 1 over all tokens of the model, or of each of its roles. What a
      critic learns is not whitened.
    - `imitate`: for the supervised loss. Advantages are weights; rows of weight 0 are left out, and a
      negative weight is refused.
    - `bootstrap`: what a limit cut off is worth the critic's value (`stages.token_advantages.bootstrap`).
    - `clip`: advantages are cut at this number and at its negative, after all else but `prefix`; None: never.
    - `prefix`: a row weighs as much as its context is likely today: table `prefix_weights/<model>` multiplies
      its advantages (`stages.shift`).
    - `spans`: some credit counts on some tokens of a turn only (`stages.token_advantages.spans`).
    - `kl_control`: what steers the KL coefficients of the reward and of the loss; None leaves them fixed.

    Raises:
        UsageError: a value that can't be, or parts that contradict each other.
    """

    model_id: str
    use: Method = "from_credit"
    gae: Gae = field(default_factory=Gae)
    whiten: Whiten = "none"
    reward_kl: RewardKl = field(default_factory=RewardKl)
    importance: Importance = field(default_factory=Importance)
    imitate: bool = False
    kl_control: KlControl | None = None
    bootstrap: bool = False
    clip: float | None = None
    prefix: bool = False
    spans: bool = False

    later: ClassVar[frozenset[str]] = frozenset({"kl_control", "bootstrap", "clip", "prefix", "spans"})
    """Fields that a version after the first runs added: with their default they are in no fingerprint."""

    def __post_init__(self) -> None:
        where = f"model {self.model_id!r}: "
        for name, value, known in (
            ("advantage.use", self.use, get_args(Method)),
            ("advantage.whiten", self.whiten, get_args(Whiten)),
            ("kl_estimator", self.reward_kl.estimator, ESTIMATORS),
            ("importance", self.importance.correction, get_args(Correction)),
            ("importance_level", self.importance.level, get_args(Level)),
        ):
            if value not in known:
                raise UsageError(
                    f"{where}{name} is {value!r}{did_you_mean(value, known)}; use one of {', '.join(known)}"
                )
        for name in ("gamma", "lam", "turn_gamma", "turn_lam"):
            if not 0 <= (discount := getattr(self.gae, name)) <= 1:
                raise UsageError(f"{where}advantage.{name} is {discount}; use a number from 0 to 1")
        for price in (self.reward_kl.coefficient, *self.reward_kl.roles.values()):
            if not (price >= 0 and math.isfinite(price)):
                raise UsageError(f"{where}kl_coefficient is {price}; use 0 or more")
        if not 0 <= self.importance.floor < self.importance.cap:
            raise UsageError(
                f"{where}importance_floor is {self.importance.floor} and importance_cap "
                f"{self.importance.cap}; use 0 <= floor < cap"
            )
        if self.spans and (self.use == "gae" or self.imitate):
            raise UsageError(
                f"{where}credit in channels makes the advantages, which GAE and the supervised loss do not "
                "take "
                'from it; use [advantage] use = "from_credit" and another loss, or remove credit.channels'
            )
        if self.bootstrap and self.use != "gae":
            raise UsageError(f'{where}bootstrap needs a critic\'s values; set advantage.use = "gae"')
        self._check_imitation(where)

    def _check_imitation(self, where: str) -> None:
        if not self.imitate:
            return
        for what, is_on in (
            ('advantage.use = "gae"', self.use == "gae"),
            (f"advantage.whiten = {self.whiten!r}", self.whiten != "none"),
            ('kl_in = "reward"', self.reward_kl.is_on),
            (f"importance = {self.importance.correction!r}", self.importance.correction != "none"),
            (f"advantage.clip = {self.clip}", self.clip is not None),
        ):
            if is_on:
                raise UsageError(
                    f"{where}the supervised loss takes the turns' credit as weights, which {what} would "
                    "change; leave that out, or use another loss"
                )

    @property
    def needs(self) -> frozenset[Need]:
        """Which scores this takes."""
        needs: set[Need] = set()
        if self.use == "gae":
            needs.add("values")
            if self.bootstrap:
                needs.add("bootstrap_episodes" if self.gae.across_turns else "bootstrap_turns")
        if self.reward_kl.is_on or self.kl_control is not None:
            needs |= {"old", "reference"}
        if self.importance.correction != "none":
            needs.add("old")
        return frozenset(needs)

    def scaled(self, scale: float) -> TokenSpec:
        """The same with the KL in the reward at `scale` times its price."""
        return replace(self, reward_kl=self.reward_kl.scaled(scale))

    @property
    def does_something(self) -> bool:
        """Whether the result differs from the turn's advantage on each of its tokens."""
        changed = self.whiten != "none" or self.clip is not None or self.prefix or self.spans
        return bool(self.needs) or changed or self.imitate
