"""Which settings act only where another one has a certain value: the one table of it.

Plans refuse a key that is set where it does not act (`pipeline.plan.effects`), and the page of settings says
so beside the key (`pipeline.settings.page`). A key that is not in the table acts by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.settings.training import CLIP


@dataclass(frozen=True, slots=True)
class Under:
    """A condition: `key` has one of `values`, or with `but` none of them."""

    key: str  # such as ppo.schedule
    values: tuple[Any, ...]
    but: bool = False

    def holds(self, facts: Mapping[str, Any]) -> bool:
        value = facts[self.key]
        # a loss of one's own, package.module:name, may read every key
        is_own = self.key == "ppo.loss" and ":" in str(value)
        return is_own or (value in self.values) != self.but

    @property
    def words(self) -> str:
        if self.but and self.values == (0,):
            return f"{self.key} above 0"
        if self.but and self.values == (None,):
            return f"{self.key} set"
        values = " or ".join(_toml(value) for value in self.values)
        return f"{self.key} {'other than' if self.but else '='} {values}"

    @property
    def remedy(self) -> str:
        """What to set, as the object of the verb."""
        if not self.but and self.values == (None,):
            return f"no {self.key}"
        return self.key if self.but and self.values == (None,) else self.words

    def now(self, facts: Mapping[str, Any]) -> str:
        """How it is, in a message."""
        value = facts[self.key]
        return f"no {self.key}" if value is None else f"{self.key} = {value!r}"


Clause = tuple[Under, ...]  # any of them suffices

_FALLS: Final = Under("ppo.schedule", ("linear", "cosine"))
_KL: Final = Under("ppo.kl_coefficient", (0,), but=True)
_GAE: Final = Under("advantage.use", ("gae",))
_CORRECTED: Final = Under("ppo.importance", ("truncated", "masked"))
_CLIPPED: Final = Under("ppo.loss", ("ppo", "gspo", "message", "cispo", "clip_cov"))
_CHOOSES: Final = Under("ppo.loss", ("clip_cov", "kl_cov"))
_SAMPLED: Final = Under("evaluate.temperature", (0,), but=True)
_VOTED: Final = Under("evaluate.vote", (None,), but=True)

_EXACT: Final = Under("measure.gradients", ("exact",))
_MEASURED: Final = Under("measure.gradients", ("estimate", "exact"))

_TRUST_KEYS: Final = ("measure", "estimator", "direction", "quantile", "share", "backtrack", "reject")
_AMONG_STEPS: Final = ("penalty", "stop_at", "mask_above")  # at the first step nothing has moved yet
_OF_BOUNDS: Final = ("z", "tolerance")
_WITHIN: Final = (Under("trust_region.radius", (None,), but=True),)
_SOME_STEPS: Final = (Under("optimizer steps of an update", (1,), but=True),)
_TAKES_BACK: Final = (Under("trust_region.backtrack", (0,), but=True), Under("trust_region.reject", (True,)))
_REJECTS: Final = (Under("trust_region.reject", (True,)),)
_CERTIFIES: Final = (Under("trust_region.certificate", (True,)),)
_TRIES: Final = (Under("trust_region.trial_tasks", (0,), but=True),)

ACTS_UNDER: Final[Mapping[str, tuple[Clause, ...]]] = {
    "ppo.total_updates": ((_FALLS,),),
    "ppo.final_share": ((_FALLS,),),
    "ppo.fixed_length": ((Under("ppo.normalisation", ("fixed_length",)),),),
    "ppo.clip_low": ((_CLIPPED,),),
    "ppo.clip_high": ((_CLIPPED,),),
    "ppo.dual_clip": ((Under("ppo.loss", ("ppo",)),),),
    "ppo.cov_share": ((_CHOOSES,),),
    "ppo.cov_low": ((Under("ppo.loss", ("clip_cov",)),),),
    "ppo.cov_high": ((Under("ppo.loss", ("clip_cov",)),),),
    "ppo.cov_kl_coefficient": ((Under("ppo.loss", ("kl_cov",)),),),
    "ppo.kl_in": ((_KL,),),
    "ppo.kl_estimator": ((_KL,),),
    "ppo.kl_target": ((_KL,),),
    "ppo.kl_step": ((_KL,), (Under("ppo.kl_target", (None,), but=True),)),
    "ppo.importance_level": ((_CORRECTED,),),
    "ppo.importance_cap": ((_CORRECTED,),),
    "ppo.importance_floor": ((Under("ppo.importance", ("masked",)),),),
    "models.<id>.reference": ((_KL, Under("measure.drift", (True,))),),
    "ppo.coherence_window": ((Under("ppo.coherence_damping", (0,), but=True),),),
    "ppo.max_role_share": ((_EXACT,), (Under("roles of the model", (1,), but=True),)),
    "ppo.damp_copies": ((_EXACT,),),
    "measure.window": ((_MEASURED,),),
    "measure.drift": ((_MEASURED,), (Under("ppo.kl_coefficient", (0,)), Under("ppo.kl_in", ("reward",)))),
    **dict.fromkeys((f"trust_region.{key}" for key in _TRUST_KEYS), (_WITHIN,)),
    "trust_region.top_k": (_WITHIN, (Under("trust_region.estimator", ("exact",)),)),
    **dict.fromkeys((f"trust_region.{key}" for key in _AMONG_STEPS), (_WITHIN, _SOME_STEPS)),
    "trust_region.certificate": (_WITHIN, _TAKES_BACK),
    "trust_region.return_range": (_WITHIN, _TAKES_BACK, _CERTIFIES),
    **dict.fromkeys(
        (f"trust_region.{key}" for key in _OF_BOUNDS), (_WITHIN, _TAKES_BACK, (*_CERTIFIES, *_TRIES))
    ),
    "trust_region.trial_tasks": (_WITHIN, _REJECTS),
    "trust_region.trial_samples": (_WITHIN, _REJECTS, _TRIES),
    "advantage.gamma": ((_GAE, Under("ppo.kl_in", ("reward",))),),
    "advantage.lam": ((_GAE,),),
    "advantage.turn_gamma": ((_GAE,),),
    "advantage.turn_lam": ((_GAE,), (Under("advantage.across_turns", (True,)),)),
    "advantage.across_turns": ((_GAE,),),
    "advantage.bootstrap_cut": ((_GAE,),),
    "critic.kind": ((_GAE,),),
    "critic.heads": ((_GAE,),),
    "critic.checkpoint": ((_GAE,), (Under("critic.kind", ("model",)),)),
    "critic.learning_rate": ((_GAE,),),
    "critic.value_clip": ((_GAE,),),
    "critic.coefficient": ((_GAE,), (Under("critic.kind", ("head",)),)),
    "critic.warmup_updates": ((_GAE,),),
    **dict.fromkeys(("evaluate.top_p", "evaluate.top_k", "evaluate.min_p"), ((_SAMPLED, _VOTED),)),
    "evaluate.patience": ((Under("evaluate.every", (0,), but=True),),),
    "credit.silent_by": ((Under("credit.silent", ("exclude",)),),),
    "sharing.groups": ((Under("sharing.regime", (None,)),),),
}
"""By key, what must hold for it to act: of each clause at least one condition."""

OFF: Final[Mapping[str, Any]] = {
    "ppo.dual_clip": 0,
    **{"evaluate.top_p": 1, "evaluate.top_k": 0, "evaluate.min_p": 0},
    **{f"ppo.{key}": value for key, value in CLIP.items()},
}
"""Values beside the default that say what is so where the key does not act, or that older versions wrote."""


def without_effect(key: str, facts: Mapping[str, Any]) -> Clause | None:
    """What would have to hold for `key` to act, and does not; None where it acts.

    Args:
        key: a key of the settings, such as ppo.final_share.
        facts: the values of the keys that the table names.
    """
    for clause in ACTS_UNDER.get(key, ()):
        if not any(condition.holds(facts) for condition in clause):
            return clause
    return None


def acts_with(key: str) -> str:
    """What must hold for `key` to act, in words; an empty string for a key that acts by default."""
    clauses = [" or ".join(condition.words for condition in clause) for clause in ACTS_UNDER.get(key, ())]
    return " and ".join(clauses)


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"
