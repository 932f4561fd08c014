"""Keys of training that are set where they have no effect, each refused with what it would act with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.settings.effects import OFF, without_effect
from pipeline.settings.schema import EvaluateSection
from pipeline.settings.section import Section
from pipeline.settings.training import (
    AdvantageSection,
    CriticSection,
    MeasureSection,
    PpoSection,
    TrustSection,
)
from workflows.errors import UsageError

DEFAULTS: Final[Mapping[str, Any]] = {
    "models.<id>.reference": "initial",
    **{f"ppo.{key}": value for key, value in PpoSection()},
    **{f"critic.{key}": value for key, value in CriticSection()},
    **{f"advantage.{key}": value for key, value in AdvantageSection()},
    **{f"measure.{key}": value for key, value in MeasureSection()},
    **{f"trust_region.{key}": value for key, value in TrustSection()},
    **{f"evaluate.{key}": value for key, value in EvaluateSection()},
}


_LEFT_OUT: Final = ("mask", "exclude")  # rules for truncated replies


@dataclass(frozen=True, slots=True)
class Learner:
    """What settings say of one model that is trained: whose keys act, and where each was set."""

    model_id: str
    ppo: PpoSection  # with its own keys
    critic: CriticSection | None
    trust: TrustSection
    reference: str
    overrides: Mapping[
        str, Mapping[str, Any]
    ]  # keys of [ppo], [critic] or [trust_region] by section: models.<id>.ppo, …
    num_roles: int  # that speak with it
    kl_of_roles: float  # the largest KL coefficient of a role of its own

    def facts(self, advantage: AdvantageSection, measure: MeasureSection) -> dict[str, Any]:
        """The values that decide which keys act."""
        default = "sequence_mean" if self.ppo.loss == "gspo" else "token_mean"
        ppo = {f"ppo.{key}": value for key, value in self.ppo}
        critic = {f"critic.{key}": value for key, value in self.critic or CriticSection()}
        return {
            **ppo,
            **critic,
            **{f"trust_region.{key}": value for key, value in self.trust},
            "optimizer steps of an update": self.ppo.epochs * self.ppo.mini_batches,
            **{f"advantage.{key}": value for key, value in advantage},
            **{f"measure.{key}": value for key, value in measure},
            "roles of the model": self.num_roles,
            "ppo.normalisation": self.ppo.normalisation or default,
            "ppo.kl_coefficient": max(self.ppo.kl_coefficient, self.kl_of_roles),
        }


def check_effects(
    ppo: PpoSection,
    critic: CriticSection | None,
    advantage: AdvantageSection,
    measure: MeasureSection,
    trust: TrustSection,
    learners: Sequence[Learner],
) -> None:
    """Refuse keys that are set where they have no effect, rather than ignore them.

    A key of a section that all models share is refused where it acts for none of them.

    Args:
        ppo: [ppo] as the settings have it; `critic` is [critic].
        advantage: [advantage]; `measure` is [measure], `trust` is [trust_region].
        learners: the models that are trained.

    Raises:
        UsageError: the first such key, and what it would act with.
    """
    facts = [learner.facts(advantage, measure) for learner in learners]
    if not facts:
        return
    for learner, known in zip(learners, facts, strict=True):
        for section, keys in learner.overrides.items():
            name = section.rpartition(".")[2]
            for key, value in keys.items():
                if name != "critic" or advantage.use == "gae":  # else the whole critic is refused
                    _refuse_idle(f"{name}.{key}", value, known, f"{section}.{key}")
        where = f"models.{learner.model_id}.reference"
        _refuse_idle("models.<id>.reference", learner.reference, known, where)
    sections: dict[str, Section | None] = {
        "ppo": ppo,
        "critic": critic,
        "advantage": advantage,
        "measure": measure,
    }
    sections["trust_region"] = trust
    for name, section_of_all in sections.items():
        for key, value in section_of_all or ():
            idle = [known for known in facts if without_effect(f"{name}.{key}", known)]
            if len(idle) == len(facts) and (name != "critic" or advantage.use == "gae"):
                _refuse_idle(f"{name}.{key}", value, idle[0], f"{name}.{key}")


def check_evaluation_effects(evaluate: EvaluateSection) -> None:
    """Refuse keys of [evaluate] that are set where they have no effect.

    Raises:
        UsageError: the first such key, and what it would act with.
    """
    facts = {f"evaluate.{key}": value for key, value in evaluate}
    for key, value in facts.items():
        _refuse_idle(key, value, facts, key)


def check_weights(ppo: PpoSection, where: str) -> None:
    """Refuse importance weights that leave out tokens on which sampler and trainer agree."""
    if ppo.importance == "masked" and not ppo.importance_floor <= 1 <= ppo.importance_cap:
        raise UsageError(
            f"{where}: importance_floor = {ppo.importance_floor:g} and importance_cap = "
            f"{ppo.importance_cap:g} leave out tokens of weight 1, on which sampler and trainer agree; use a "
            "floor of at most 1 and a cap of at least 1"
        )


def check_bootstrap(advantage: AdvantageSection, truncated: str) -> None:
    """Refuse values for replies that were cut off where none of them is trained on."""
    if (
        advantage.use == "gae"
        and advantage.bootstrap_cut
        and not advantage.across_turns
        and truncated in _LEFT_OUT
    ):
        raise UsageError(
            f'advantage.bootstrap_cut has no effect with credit.truncated = "{truncated}", which leaves the '
            "replies that were cut off out of updates, and advantage.across_turns = false; remove it, or set "
            'credit.truncated = "as_malformed"'
        )


def check_heads(learners: Sequence[Learner]) -> None:
    """Refuse value heads of roles where no model has two roles to tell apart."""
    asked = [x for x in learners if x.critic is not None and x.critic.heads == "role"]
    if asked and all(learner.num_roles < 2 for learner in asked):
        names = ", ".join(learner.model_id for learner in asked)
        raise UsageError(
            f'critic.heads = "role" has no effect: each of the models {names} speaks for one role; remove '
            "it, or let roles share a model"
        )


def _refuse_idle(key: str, value: Any, facts: Mapping[str, Any], where: str) -> None:
    if value in (DEFAULTS.get(key), OFF.get(key, DEFAULTS.get(key))):
        return
    if clause := without_effect(key, facts):
        now = " and ".join(condition.now(facts) for condition in clause)
        raise UsageError(
            f"{where} = {value!r} has no effect with {now}; remove it, or set "
            f"{' or '.join(condition.remedy for condition in clause)}"
        )
