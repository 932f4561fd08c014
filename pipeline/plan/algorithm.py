"""What each model's update optimises: loss, critic, reference, schedule and token advantages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pipeline.plan.resolve import ModelPlan
from pipeline.settings.training import AdvantageSection, CreditSection, MeasureSection
from rewards.base import Credit, CreditHooks
from rewards.credit.silent import LeaveOutSilent
from rewards.scoring.score import Truncated
from stages.engines.kinds import engine_class
from stages.token_advantages.gae import Gae
from stages.token_advantages.importance import Importance
from stages.token_advantages.kl_control import KlControl
from stages.token_advantages.spec import Need, RewardKl, TokenSpec
from stages.training.loss.spec import CriticSpec, LossSpec, ReferenceSpec, RoleLoss, ScheduleSpec
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError, did_you_mean
from workflows.hooks import hooks_of


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
    def scales_loss(self) -> bool:
        """Whether the KL coefficients of the loss are adaptive."""
        return self.tokens.kl_control is not None and self.loss.needs_reference


def algorithms(
    models: Iterable[ModelPlan],
    advantage: AdvantageSection,
    credit: str,
    method: Credit,
    measure: MeasureSection,
    stop_losses: Mapping[str, tuple[str, float]] = MappingProxyType({}),
    *,
    spans: bool = False,
) -> dict[str, Algorithm]:
    """The algorithm of each model by its id.

    Args:
        models: those that are trained.
        advantage: how the turns' advantages become the tokens'.
        credit: the name of the credit method, for messages.
        method: the credit method.
        measure: what is measured of each role.
        stop_losses: the loss of stop decisions and its weight, by model id.
        spans: some credit counts on some tokens of a turn only.

    Raises:
        UsageError: settings that contradict each other.
    """
    found = {model.model_id: _algorithm(model, advantage, credit, method, measure, spans) for model in models}
    for model_id, (name, weight) in stop_losses.items():
        loss = replace(found[model_id].loss, stop_loss=name, stop_coefficient=weight)
        found[model_id] = replace(found[model_id], loss=loss)
    return found


def token_specs(
    models: Iterable[ModelPlan],
    advantage: AdvantageSection,
    credit: str,
    method: Credit,
    *,
    spans: bool = False,
) -> dict[str, TokenSpec]:
    """How the turns of each model become token advantages; needs no checkpoint. See `algorithms`.

    Raises:
        UsageError: settings that contradict each other.
    """
    return {model.model_id: _tokens(model, advantage, credit, method, spans) for model in models}


def truncated_rule(credit: CreditSection) -> Truncated:
    """What rewards make of replies that were cut off; those that are masked later are rewarded as ever."""
    return "exclude" if credit.truncated == "exclude" else "as_malformed"


def leave_out_silent(credit: CreditSection, rewards: Collection[str]) -> LeaveOutSilent | None:
    """Whether silent groups are left out, and what decides; `rewards` are the names of the rewards.

    Raises:
        UsageError: `silent_by` is not one of them, or has no effect.
    """
    if credit.silent == "keep":
        if credit.silent_by is not None:
            raise UsageError(
                f"credit.silent_by = {credit.silent_by!r} has no effect with credit.silent = "
                '"keep"; remove it, or set credit.silent = "exclude"'
            )
        return None
    if credit.silent_by is not None and credit.silent_by not in rewards:
        raise UsageError(
            f"credit.silent_by names the reward {credit.silent_by!r}"
            f"{did_you_mean(credit.silent_by, rewards)}; the rewards are {', '.join(rewards)}"
        )
    return LeaveOutSilent(credit.silent_by)


def _algorithm(
    model: ModelPlan,
    advantage: AdvantageSection,
    credit: str,
    method: Credit,
    measure: MeasureSection,
    spans: bool,
) -> Algorithm:
    ppo = model.ppo
    try:
        loss = _loss(model)
        schedule = ScheduleSpec(ppo.schedule, ppo.warmup_updates, ppo.total_updates, ppo.final_share)
    except UsageError as error:
        raise UsageError(f"[ppo] of model {model.model_id!r}: {error}") from None
    tokens = _tokens(model, advantage, credit, method, spans)
    engine = model.section.engine
    if not tokens.imitate and not engine_class(engine).is_sampled:
        raise UsageError(
            f'model {model.model_id!r} has engine = "{engine}", whose answers it did not sample, and the '
            f'loss {ppo.loss!r}; imitate them: [ppo] loss = "supervised" with [credit] use = "rejection"'
        )
    critic = _critic(model, advantage)
    needs = set(tokens.needs)
    if loss.needs_reference:
        needs.add("reference")
    steps = ppo.epochs * ppo.mini_batches
    if loss.name == "kl_cov" and steps == 1:
        raise UsageError(
            f'[ppo] of model {model.model_id!r}: loss = "kl_cov" has no effect with epochs = 1 and '
            "mini_batches = 1, as the KL to the policy of before the update is 0 in its first optimizer "
            'step; set ppo.epochs or ppo.mini_batches to 2 or more, or use loss = "clip_cov"'
        )
    if needs and (steps > 1 or loss.chooses_tokens or (critic is not None and critic.kind == "head")):
        needs.add("old")  # the same forward pass gives them, or the update would make one more for them
    reference = _reference(model) if "reference" in needs or measure.drift else None
    return Algorithm(loss, schedule, critic, reference, tokens, frozenset(needs))


def _loss(model: ModelPlan) -> LossSpec:
    ppo, roles = model.ppo, model.role_losses
    if ":" in ppo.loss:
        from workflows.plugins import load_function

        load_function(ppo.loss, "loss")
    normalisation = ppo.normalisation or ("sequence_mean" if ppo.loss == "gspo" else "token_mean")
    fixed_length = None
    if normalisation == "fixed_length":
        fixed_length = ppo.fixed_length or max(role.response_limit for role in model.roles)
    in_loss = ppo.kl_in == "loss"
    assert ppo.clip_low is not None, "a plan's settings are settled"
    assert ppo.clip_high is not None, "a plan's settings are settled"
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
        cov_share=ppo.cov_share or 0.0,
        cov_low=ppo.cov_low,
        cov_high=ppo.cov_high,
        cov_kl_coefficient=ppo.cov_kl_coefficient,
        roles=roles if in_loss else {r: _without_kl(terms) for r, terms in roles.items()},
    )


def _without_kl(terms: RoleLoss) -> RoleLoss:
    return RoleLoss(terms.clip_low, terms.clip_high, None, terms.entropy_coefficient, terms.weight)


def _tokens(
    model: ModelPlan, advantage: AdvantageSection, credit: str, method: Credit, spans: bool
) -> TokenSpec:
    ppo = model.ppo
    imitate = ppo.loss == "supervised"
    # a credit method of the user's own is trusted until it gives a negative weight
    if imitate and not (":" in credit or hooks_of(method, CreditHooks).gives_weights):
        raise UsageError(
            f"model {model.model_id!r}: the supervised loss imitates turns by weights that are never "
            f'negative, and credit {credit!r} gives others; use [credit] use = "rejection"'
        )
    coefficients = [t.kl_coefficient or 0.0 for t in model.role_losses.values()]
    largest = max((ppo.kl_coefficient, *coefficients))
    estimator = ppo.kl_estimator or ("k1" if ppo.kl_in == "reward" else "k3")
    control = None
    if ppo.kl_target is not None and largest:
        control = KlControl(ppo.kl_target, ppo.kl_step, largest, estimator)
    prices = {r: t.kl_coefficient for r, t in model.role_losses.items() if t.kl_coefficient is not None}
    return TokenSpec(
        model_id=model.model_id,
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
        kl_control=control,
        bootstrap=advantage.bootstrap_cut,
        clip=advantage.clip,
        spans=spans,
    )


def _critic(model: ModelPlan, advantage: AdvantageSection) -> CriticSpec | None:
    section = model.critic
    if advantage.use != "gae":
        if section is not None:
            raise UsageError(
                f"model {model.model_id!r} has a critic, whose values nothing reads: [advantage] use is "
                f'{advantage.use!r}; set it to "gae", or remove [critic]'
            )
        return None
    if section is None:
        raise UsageError(
            '[advantage] use = "gae" needs values: add [critic], with kind = "head" (a layer on the model '
            'itself) or kind = "model" (a network of its own)'
        )
    checkpoint = section.checkpoint
    if checkpoint is not None:
        checkpoint = _same_vocabulary(model, checkpoint, "critic.checkpoint")
    return CriticSpec(
        kind=section.kind,
        checkpoint=checkpoint,
        learning_rate=section.learning_rate,
        value_clip=section.value_clip or None,
        coefficient=section.coefficient,
        warmup_updates=section.warmup_updates,
        roles=tuple(sorted(role.name for role in model.roles)) if section.heads == "role" else (),
    )


def _reference(model: ModelPlan) -> ReferenceSpec:
    name = model.section.reference
    if name == "initial":
        return ReferenceSpec()
    return ReferenceSpec(_same_vocabulary(model, name, "reference"))


def _same_vocabulary(model: ModelPlan, name: str, key: str) -> str:
    """The folder of a checkpoint that reads the same ids as the model; `key` is the setting that names it."""
    folder = resolve_checkpoint(name)
    mine = describe_checkpoint(resolve_checkpoint(model.section.checkpoint))
    other = describe_checkpoint(folder)
    if (mine.tokenizer_hash, mine.vocab_size) != (other.tokenizer_hash, other.vocab_size):
        raise UsageError(
            f"models.{model.model_id}.{key} = {name!r} has another tokenizer than model {model.model_id!r}, "
            "so it would read other words from the same ids; use a checkpoint of the same family"
        )
    return folder
