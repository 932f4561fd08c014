"""Settings and workflow, resolved once: checked values for each role and each model, and the sections.

What the shorthands and overrides of a settings file mean is worked out here and nowhere else: which model
a role speaks with, which keys of [ppo] and [critic] a model has, how a role samples. Builders of stages,
engines and trainers take a `ModelPlan`, a `RolePlan` or the one section that they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan.contradictions import (
    check_frozen_roles,
    check_patience,
    check_role_overrides,
    check_room,
    check_training_sampling,
    check_untrained,
    check_words,
)
from pipeline.plan.effects import (
    Learner,
    check_bootstrap,
    check_effects,
    check_evaluation_effects,
    check_heads,
    check_weights,
)
from pipeline.plan.sharing import model_map, shared
from pipeline.plan.stopping import check_stopping
from pipeline.settings.reading import settings_toml
from pipeline.settings.schema import (
    IN_FLIGHT,
    CheckpointsSection,
    ClusterSection,
    DataSection,
    EvaluateSection,
    ModelSection,
    RewardSection,
    RoleSection,
    RolloutSection,
    RunSection,
    SandboxSection,
    ScheduleSection,
    Settings,
    WorkflowSection,
)
from pipeline.settings.section import validate
from pipeline.settings.stopping import StoppingSection
from pipeline.settings.tracking import TrackingSection
from pipeline.settings.training import (
    LOSS_TERMS,
    AdvantageSection,
    CounterfactualsSection,
    CreditSection,
    CriticSection,
    MeasureSection,
    PpoSection,
    TrustSection,
)
from stages.training.loss.spec import RoleLoss
from workflows.loading import load_workflow, workflow_takes
from workflows.models import Model, ModelMap
from workflows.roles import RoleSettings
from workflows.script import AnyWorkflow
from workflows.tools.code.isolation import Sandbox


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role of the workflow: which model speaks for it, and how."""

    name: str
    section: RoleSection  # with its `model`
    model_id: str
    sampling: RoleSettings  # of training's rollouts
    response_limit: int  # the most tokens of one answer: its own setting, or the workflow's


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model of the team, with all that its engine, its trainer and its loss are made from."""

    model: Model
    section: ModelSection  # an adapter's has the keys that its base decides
    roles: tuple[RolePlan, ...]  # that speak with it
    ppo: PpoSection  # with the model's own keys, and those of its role if it has a single one
    critic: CriticSection | None  # with the model's own keys; None: there is none
    trust: TrustSection  # with the model's own keys
    role_losses: Mapping[str, RoleLoss]  # what roles that share the model have of their own in its loss

    @property
    def model_id(self) -> str:
        return self.model.model_id


@dataclass(frozen=True, slots=True)
class Resolved:
    """Checked settings of one workflow, in which every role has its model and no shorthand is left."""

    settings: Settings  # what a run keeps; the fields below are cut from it
    workflow: AnyWorkflow
    models: ModelMap
    model_plans: Mapping[str, ModelPlan]  # by id, of the models that a role speaks with
    model_sections: Mapping[str, ModelSection]  # by id, of bases that no role speaks with too
    roles: Mapping[str, RolePlan]  # by name
    options: Mapping[str, Any]  # the workflow's, with the sandbox where it takes one
    sandbox: Sandbox
    run: RunSection
    data: DataSection
    workflow_section: WorkflowSection  # [workflow] as the settings have it
    rollout: RolloutSection
    rewards: tuple[RewardSection, ...]
    credit: CreditSection  # with its method in `use`
    counterfactuals: CounterfactualsSection
    schedule: ScheduleSection
    stopping: StoppingSection
    advantage: AdvantageSection
    measure: MeasureSection
    evaluate: EvaluateSection
    checkpoints: CheckpointsSection
    tracking: TrackingSection
    cluster: ClusterSection

    @property
    def trained(self) -> list[ModelPlan]:
        """The models that are trained, in the order of the settings."""
        return [self.model_plans[model.model_id] for model in self.models.trainable]

    @property
    def within_trust(self) -> frozenset[str]:
        """The models that have a trust region."""
        return frozenset(plan.model_id for plan in self.trained if plan.trust.radius is not None)

    @property
    def measures_ratios(self) -> bool:
        """Whether updates of several models are all measured on every row, so that shifts can be told."""
        regions = [plan.trust for plan in self.trained]
        return len(regions) > 1 and all(r.radius is not None and r.share == 1 for r in regions)

    @property
    def format_weights(self) -> dict[str, float]:
        """What each role's format weighs in the reward `format`."""
        return {name: role.section.format_weight for name, role in self.roles.items()}

    @property
    def frozen_roles(self) -> frozenset[str]:
        """Roles whose turns are played and rewarded, but not trained on, though their model is."""
        return frozenset(name for name, role in self.roles.items() if role.section.frozen)

    @property
    def toml(self) -> str:
        """The settings as a run keeps them: they read back to the same plan."""
        return settings_toml(self.settings)

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not at their defaults, as plain values."""
        return self.settings.model_dump(mode="json", exclude_defaults=True)

    @property
    def dump(self) -> dict[str, Any]:
        """The settings as plain values."""
        return self.settings.model_dump(mode="json")

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The settings as plain values, without later keys at their default: see `Section.fingerprint`."""
        return self.settings.fingerprint()


def load_and_resolve(settings: Settings) -> Resolved:
    """`resolve` with the workflow that the settings name.

    Raises:
        UsageError: there is no such workflow, or the settings do not fit it.
    """
    section = settings.workflow
    return resolve(settings, load_workflow(section.use, workflow_options(settings), section.returns))


def resolve(settings: Settings, workflow: AnyWorkflow) -> Resolved:
    """Checked values for each model and each role of the workflow.

    Raises:
        UsageError: the first setting that is unknown, out of range, or contradicts another.
    """
    for model_id, section in settings.models.items():
        # before [sharing] makes models of a pattern, so that a message names what the file says
        ppo = _ppo(settings.ppo, section, f"models.{model_id}.ppo", {}, "")
        check_words(settings.credit.use, {f"loss of model {model_id!r}": ppo.loss})
        _critic(settings.critic, section, f"models.{model_id}.critic")
    check_untrained(settings.models)
    check_patience(settings.evaluate.patience, settings.evaluate.every)
    settings = complete(settings, list(workflow.roles))
    models = model_map({role: str(s.model) for role, s in settings.roles.items()}, settings.models)
    check_role_overrides(settings.roles, settings.models)
    check_frozen_roles(settings.roles, settings.models)
    roles = {name: _role(name, settings, workflow) for name in settings.roles}
    plans = {model.model_id: _model(model, settings, roles) for model in models.models.values()}
    learners = [_learner(plan) for plan in plans.values() if plan.model.trainable]
    check_effects(
        settings.ppo, settings.critic, settings.advantage, settings.measure, settings.trust_region, learners
    )
    check_evaluation_effects(settings.evaluate)
    if settings.advantage.use == "gae":
        check_heads(learners)
    check_bootstrap(settings.advantage, settings.credit.truncated)
    for learner in learners:
        check_weights(learner.ppo, f"[ppo] of model {learner.model_id!r}")
    resolved = Resolved(
        settings=settings,
        workflow=workflow,
        models=models,
        model_plans=plans,
        model_sections=settings.models,
        roles=roles,
        options=workflow_options(settings),
        sandbox=sandbox_of(settings.sandbox),
        run=settings.run,
        data=settings.data,
        workflow_section=settings.workflow,
        rollout=settings.rollout,
        rewards=settings.rewards,
        credit=settings.credit.model_copy(update={"use": settings.credit_method}),
        counterfactuals=settings.counterfactuals,
        schedule=settings.schedule,
        stopping=settings.stopping,
        advantage=settings.advantage,
        measure=settings.measure,
        evaluate=settings.evaluate,
        checkpoints=settings.checkpoints,
        tracking=settings.tracking,
        cluster=settings.cluster,
    )
    check_stopping(resolved)
    return resolved


def complete(settings: Settings, names: Sequence[str]) -> Settings:
    """`settings` with the model of every role of the workflow and the episodes in flight filled in, and
    [sharing] written out.

    Raises:
        UsageError: a role that the workflow does not have, a role without a model, or models that do not
            fit together.
    """
    roles, models = shared(settings.workflow.use, settings.sharing, settings.models, settings.roles, names)
    replicas = max((section.replicas for section in models.values()), default=1)
    in_flight = settings.rollout.max_in_flight or IN_FLIGHT * replicas
    rollout = settings.rollout.model_copy(update={"max_in_flight": in_flight})
    filled = {"roles": roles, "models": models, "sharing": None, "rollout": rollout}
    return settings.model_copy(update=filled)


def workflow_options(settings: Settings) -> dict[str, Any]:
    """The workflow's options, with the sandbox where it takes one and the settings give none."""
    options = dict(settings.workflow.options)
    if workflow_takes(settings.workflow.use, "sandbox"):
        options.setdefault("sandbox", sandbox_of(settings.sandbox))
    return options


def sandbox_of(section: SandboxSection) -> Sandbox:
    """[sandbox] for those who run programs. A sandbox belongs to the machine, so no stage depends on it."""
    return Sandbox(**section.model_dump())


def _role(name: str, settings: Settings, workflow: AnyWorkflow) -> RolePlan:
    section = settings.roles[name]
    model_id = str(section.model)
    model, sampling = settings.models[model_id], section.sampling
    temperature = settings.rollout.temperature if sampling.temperature is None else sampling.temperature
    role_settings = RoleSettings(
        temperature=temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=sampling.stop,
        max_response_tokens=section.max_response_tokens,
        max_prompt_tokens=section.max_prompt_tokens,
        demonstrations=section.demonstrations,
    )
    if model.train:
        check_training_sampling(name, role_settings)
    limit = section.max_response_tokens or workflow.roles[name].max_response_tokens
    check_room(name, limit, model_id, model.max_model_len)
    return RolePlan(
        name=name,
        section=section,
        model_id=model_id,
        sampling=role_settings,
        response_limit=limit,
    )


def _model(model: Model, settings: Settings, every_role: Mapping[str, RolePlan]) -> ModelPlan:
    section = settings.models[model.model_id]
    roles = tuple(role for role in every_role.values() if role.model_id == model.model_id)
    where = f"models.{model.model_id}"
    of_role: dict[str, Any] = {}
    role_where = ""
    if len(roles) == 1:
        of_role = {k: v for k, v in roles[0].section.ppo.items() if k != "weight"}
        role_where = f"roles.{roles[0].name}.ppo"
    return ModelPlan(
        model=model,
        section=section,
        roles=roles,
        ppo=_ppo(settings.ppo, section, f"{where}.ppo", of_role, role_where),
        critic=_critic(settings.critic, section, f"{where}.critic"),
        trust=_trust(settings.trust_region, section, f"{where}.trust_region"),
        role_losses=_role_losses(roles),
    )


def _learner(plan: ModelPlan) -> Learner:
    overrides: dict[str, Mapping[str, Any]] = {
        f"models.{plan.model_id}.ppo": plan.section.ppo,
        f"models.{plan.model_id}.critic": plan.section.critic,
        f"models.{plan.model_id}.trust_region": plan.section.trust_region,
    }
    for role in plan.roles:
        overrides[f"roles.{role.name}.ppo"] = role.section.ppo
    return Learner(
        model_id=plan.model_id,
        ppo=plan.ppo,
        critic=plan.critic,
        trust=plan.trust,
        reference=plan.section.reference,
        overrides=overrides,
        num_roles=len(plan.roles),
        kl_of_roles=max((terms.kl_coefficient or 0.0 for terms in plan.role_losses.values()), default=0.0),
    )


def _ppo(
    shared: PpoSection, model: ModelSection, where: str, of_role: Mapping[str, Any], role_where: str
) -> PpoSection:
    """[ppo] with a model's own keys on top, and on those the keys of its single role; settled."""
    values = {**shared.model_dump(), **model.ppo, **of_role}
    ppo: PpoSection = validate(PpoSection, values, role_where if of_role else where)
    return ppo.settled()


def _critic(shared: CriticSection | None, model: ModelSection, where: str) -> CriticSection | None:
    """[critic] with a model's own keys on top; None where there is neither."""
    if shared is None and not model.critic:
        return None
    values = {**(shared.model_dump() if shared else {}), **model.critic}
    critic: CriticSection = validate(CriticSection, values, where)
    return critic


def _trust(shared: TrustSection, model: ModelSection, where: str) -> TrustSection:
    """[trust_region] with a model's own keys on top."""
    trust: TrustSection = validate(TrustSection, {**shared.model_dump(), **model.trust_region}, where)
    return trust


def _role_losses(roles: Sequence[RolePlan]) -> dict[str, RoleLoss]:
    """What the roles of one model have of their own in its loss, by name; a single role's terms are the
    model's, except its weight."""
    keys = ("weight",) if len(roles) == 1 else (*sorted(LOSS_TERMS), "weight")
    losses = {}
    for role in roles:
        if terms := {key: role.section.ppo[key] for key in keys if key in role.section.ppo}:
            losses[role.name] = RoleLoss(**terms)
    return losses
