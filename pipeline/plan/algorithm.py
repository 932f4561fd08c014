"""From settings to what each model's update optimises: loss, critic, reference, schedule, token advantages.

What contradicts itself is refused here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.settings.schema import Settings
from pipeline.settings.training import LOSS_TERMS, AdvantageSection, PpoSection
from rewards.base import Credit
from rewards.credit.silent import LeaveOutSilent
from stages.engines.kinds import engine_class
from stages.token_advantages.gae import Gae
from stages.token_advantages.importance import Importance
from stages.token_advantages.spec import Need, RewardKl, TokenSpec
from stages.training.loss.spec import CriticSpec, LossSpec, ReferenceSpec, RoleLoss, ScheduleSpec
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How one model learns."""

    loss: LossSpec
    schedule: ScheduleSpec
    critic: CriticSpec | None
    reference: ReferenceSpec | None
    tokens: TokenSpec
    needs: frozenset[Need]  # scores that the plan takes; none: no score stage

    @property
    def described(self) -> str:
        """In a few words, for `check`."""
        words = [f"loss {self.loss.name}", self.loss.normalisation.replace("_", " ")]
        if self.critic is not None:
            words.append(f"critic {self.critic.kind}")
        if self.reference is not None:
            where = "reward" if self.tokens.reward_kl.is_on else "loss"
            words.append(f"KL to {self.reference.checkpoint} in the {where}")
        if self.tokens.importance.correction != "none":
            words.append(f"{self.tokens.importance.correction} importance sampling")
        if self.schedule.kind != "constant" or self.schedule.warmup_updates:
            words.append(f"{self.schedule.kind} schedule, {self.schedule.warmup_updates} warm-up updates")
        return ", ".join(words)


def algorithms(
    settings: Settings, method: Credit, response_limits: Mapping[str, int]
) -> dict[str, Algorithm]:
    """The algorithm of every model that is trained.

    Args:
        settings: with every role's model filled in.
        method: the credit method.
        response_limits: by role: the most tokens that an answer may have.

    Raises:
        UsageError: settings that contradict each other.
    """
    _check_roles(settings)
    _check_advantage(settings)
    trained = [model_id for model_id, section in settings.models.items() if section.train]
    return {model_id: _algorithm(settings, model_id, method, response_limits) for model_id in trained}


def token_specs(settings: Settings, method: Credit) -> dict[str, TokenSpec]:
    """How the turns of every trained model become token advantages; needs no checkpoint.

    Raises:
        UsageError: settings that contradict each other.
    """
    _check_roles(settings)
    _check_advantage(settings)
    trained = [model_id for model_id, section in settings.models.items() if section.train]
    return {m: _tokens(settings, m, settings.ppo_of(m), _role_losses(settings, m), method) for m in trained}


def frozen_roles(settings: Settings) -> frozenset[str]:
    """Roles whose turns are played and rewarded, but not trained on, though their model is."""
    return frozenset(role for role, section in settings.roles.items() if section.frozen)


def leave_out_silent(settings: Settings) -> LeaveOutSilent | None:
    """Whether silent groups are left out, and what decides."""
    credit = settings.credit
    if credit.silent == "keep":
        if credit.silent_by is not None:
            raise UsageError('credit.silent_by needs credit.silent = "exclude"')
        return None
    names = [section.label for section in settings.rewards]
    if credit.silent_by is not None and credit.silent_by not in names:
        raise UsageError(
            f"credit.silent_by names the reward {credit.silent_by!r}{did_you_mean(credit.silent_by, names)}; "
            f"the rewards are {', '.join(names)}"
        )
    return LeaveOutSilent(credit.silent_by)


def _algorithm(
    settings: Settings, model_id: str, method: Credit, response_limits: Mapping[str, int]
) -> Algorithm:
    ppo = settings.ppo_of(model_id)
    roles = _role_losses(settings, model_id)
    try:
        loss = _loss(settings, model_id, ppo, roles, response_limits)
        schedule = ScheduleSpec(ppo.schedule, ppo.warmup_updates, ppo.total_updates, ppo.final_share)
    except UsageError as error:
        raise UsageError(f"[ppo] of model {model_id!r}: {error}") from None
    tokens = _tokens(settings, model_id, ppo, roles, method)
    engine = settings.models[model_id].engine
    if not tokens.imitate and not engine_class(engine).is_sampled:
        raise UsageError(
            f'model {model_id!r} has engine = "{engine}", whose answers it did not sample, and the loss '
            f'{ppo.loss!r}; imitate them: [ppo] loss = "supervised" with [credit] use = "rejection"'
        )
    critic = _critic(settings, model_id)
    needs = set(tokens.needs)
    if loss.needs_reference:
        needs.add("reference")
    steps = ppo.epochs * ppo.mini_batches
    if needs and (steps > 1 or (critic is not None and critic.kind == "head")):
        needs.add("old")  # the same forward pass gives them, or the update would make one more for them
    reference = _reference(settings, model_id) if "reference" in needs else None
    return Algorithm(loss, schedule, critic, reference, tokens, frozenset(needs))


def _loss(
    settings: Settings,
    model_id: str,
    ppo: PpoSection,
    roles: Mapping[str, RoleLoss],
    response_limits: Mapping[str, int],
) -> LossSpec:
    if ":" in ppo.loss:
        from workflows.loading import load_object

        load_object(ppo.loss)
    normalisation = ppo.normalisation or ("sequence_mean" if ppo.loss == "gspo" else "token_mean")
    fixed_length = None
    if normalisation == "fixed_length":
        limits = [response_limits[role] for role in settings.roles_of(model_id)]
        fixed_length = ppo.fixed_length or max(limits)
    elif ppo.fixed_length is not None:
        raise UsageError('fixed_length needs normalisation = "fixed_length"')
    in_loss = ppo.kl_in == "loss"
    return LossSpec(
        name=ppo.loss,
        clip_low=ppo.clip_low,
        clip_high=ppo.clip_high,
        dual_clip=ppo.dual_clip or None,
        normalisation=normalisation,
        fixed_length=fixed_length,
        entropy_coefficient=ppo.entropy_coefficient,
        kl_coefficient=ppo.kl_coefficient if in_loss else 0.0,
        kl_estimator=ppo.kl_estimator or "k3",
        roles=roles if in_loss else {r: _without_kl(terms) for r, terms in roles.items()},
    )


def _without_kl(terms: RoleLoss) -> RoleLoss:
    return RoleLoss(terms.clip_low, terms.clip_high, None, terms.entropy_coefficient, terms.weight)


def _tokens(
    settings: Settings, model_id: str, ppo: PpoSection, roles: Mapping[str, RoleLoss], method: Credit
) -> TokenSpec:
    advantage = settings.advantage
    imitate = ppo.loss == "supervised"
    # a credit method of the user's own is trusted until it gives a negative weight
    if imitate and not (":" in settings.credit_method or getattr(method, "gives_weights", False)):
        raise UsageError(
            f"model {model_id!r}: the supervised loss imitates turns by weights that are never negative, "
            f'and credit {settings.credit_method!r} gives others; use [credit] use = "rejection"'
        )
    prices = {r: t.kl_coefficient for r, t in roles.items() if t.kl_coefficient is not None}
    return TokenSpec(
        model_id=model_id,
        use=advantage.use,
        gae=Gae(
            advantage.gamma, advantage.lam, advantage.turn_gamma, advantage.turn_lam, advantage.across_turns
        ),
        whiten=advantage.whiten,
        reward_kl=RewardKl(ppo.kl_coefficient, prices, ppo.kl_estimator or "k1")
        if ppo.kl_in == "reward"
        else RewardKl(),
        importance=Importance(ppo.importance, ppo.importance_level, ppo.importance_cap, ppo.importance_floor),
        imitate=imitate,
    )


def _critic(settings: Settings, model_id: str) -> CriticSpec | None:
    section = settings.critic_of(model_id)
    if settings.advantage.use != "gae":
        if section is not None:
            raise UsageError(
                f"model {model_id!r} has a critic, which nothing asks: [advantage] use is "
                f'{settings.advantage.use!r}; set it to "gae", or remove [critic]'
            )
        return None
    if section is None:
        raise UsageError(
            '[advantage] use = "gae" needs values: add [critic], with kind = "head" (a layer on the model '
            'itself) or kind = "model" (a network of its own)'
        )
    checkpoint = section.checkpoint
    if checkpoint is not None:
        checkpoint = _same_vocabulary(settings, model_id, checkpoint, f"models.{model_id}.critic.checkpoint")
    return CriticSpec(
        kind=section.kind,
        checkpoint=checkpoint,
        learning_rate=section.learning_rate,
        value_clip=section.value_clip or None,
        coefficient=section.coefficient,
        warmup_updates=section.warmup_updates,
    )


def _reference(settings: Settings, model_id: str) -> ReferenceSpec:
    name = settings.models[model_id].reference
    if name == "initial":
        return ReferenceSpec()
    return ReferenceSpec(_same_vocabulary(settings, model_id, name, f"models.{model_id}.reference"))


def _same_vocabulary(settings: Settings, model_id: str, name: str, where: str) -> str:
    """The folder of a checkpoint that reads the same ids as the model."""
    folder = resolve_checkpoint(name)
    mine = describe_checkpoint(resolve_checkpoint(settings.models[model_id].checkpoint))
    other = describe_checkpoint(folder)
    if (mine.tokenizer_hash, mine.vocab_size) != (other.tokenizer_hash, other.vocab_size):
        raise UsageError(
            f"{where} = {name!r} has another tokenizer than model {model_id!r}, so it would read other words "
            "from the same ids; use a checkpoint of the same family"
        )
    return folder


def _role_losses(settings: Settings, model_id: str) -> dict[str, RoleLoss]:
    """What roles that share this model have of their own in its loss."""
    roles = settings.roles_of(model_id)
    out = {}
    for role in roles:
        own = settings.roles[role].ppo
        terms: dict[str, Any] = {k: own[k] for k in (*sorted(LOSS_TERMS), "weight") if k in own}
        if len(roles) == 1:  # the others are the model's own by now
            terms = {k: v for k, v in terms.items() if k == "weight"}
        if terms:
            out[role] = RoleLoss(**terms)
    return out


def _check_roles(settings: Settings) -> None:
    for role, section in settings.roles.items():
        model_id = str(section.model)
        known = (*PpoSection.model_fields, "weight")
        for key in section.ppo:
            if key not in known:
                raise UsageError(
                    f"roles.{role}.ppo: unknown key {key}{did_you_mean(key, known)}; a role that shares its "
                    f"model has {', '.join(sorted(LOSS_TERMS))} and weight"
                )
        if not settings.models[model_id].train:
            if section.ppo:
                raise UsageError(
                    f"[roles.{role}.ppo]: model {model_id!r} of that role is not trained; remove it"
                )
            continue
        _check_numbers(role, section.ppo)
        others = [r for r in settings.roles_of(model_id) if r != role]
        alien = sorted(set(section.ppo) - LOSS_TERMS - {"weight"})
        if others and alien:
            raise UsageError(
                f"roles.{role}.ppo.{alien[0]}: role {role!r} shares model {model_id!r} with "
                f"{', '.join(others)}, and one model has one optimizer; set it in "
                f"[models.{model_id}.ppo], or give the role a model of its own"
            )
    for model_id, model in settings.models.items():
        roles = settings.roles_of(model_id)
        if model.train and roles and all(settings.roles[r].frozen for r in roles):
            raise UsageError(
                f"all roles of model {model_id!r} are frozen ({', '.join(roles)}); set "
                f"models.{model_id}.train = false instead"
            )


def _check_numbers(role: str, own: Mapping[str, Any]) -> None:
    for key in (*sorted(LOSS_TERMS), "weight"):
        value = own.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"roles.{role}.ppo.{key} is {value!r}; use a number")


def _check_advantage(settings: Settings) -> None:
    """Options of GAE that would have no effect are refused rather than ignored."""
    section, default = settings.advantage, AdvantageSection()
    if section.use == "gae":
        return
    ignored = ["lam", "turn_gamma", "turn_lam", "across_turns"]
    if not any(settings.ppo_of(m).kl_in == "reward" for m in settings.models):
        ignored.append("gamma")
    for name in ignored:
        if getattr(section, name) != getattr(default, name):
            raise UsageError(
                f"advantage.{name} has no effect with [advantage] use = {section.use!r}; remove it, or set "
                'use = "gae"'
            )
