"""[stopping] of a plan: who decides on a stop, what that takes, and the stages that value and train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.settings.stopping import StoppingSection
from rewards.stopping.table import StopSpec
from stages.base import Stage
from stages.engines.kinds import engine_class
from stages.partition import PartitionSpec
from stages.probes import ProbeRewardStage, ProbeStage
from stages.reward import RewardStage
from stages.stop_rows import StopRowsStage
from stages.stops import Budget, StopsStage
from workflows.errors import UsageError
from workflows.script import AnyWorkflow
from workflows.vocabulary import Act

if TYPE_CHECKING:
    from pipeline.plan.resolve import ModelPlan, Resolved

_OF_USE = {
    "probes": ("measure", "hazard", "all_action"),
    "cost": ("measure", "hazard", "all_action"),
    "price": ("measure", "hazard", "all_action"),
    "budget": ("hazard", "all_action"),
    "price_step": ("hazard", "all_action"),
    "epsilon": ("all_action",),
    "coefficient": ("hazard", "all_action"),
}


def deciders(workflow: AnyWorkflow) -> frozenset[str]:
    """The roles of a workflow that decide on a stop."""
    return frozenset(role.name for role in workflow.roles.values() if role.decides == Act.STOP)


def holds_stops(stopping: StoppingSection) -> bool:
    """Whether training's episodes go on to their end, whatever is decided."""
    return stopping.use in ("measure", "hazard")


def learns_stops(stopping: StoppingSection) -> bool:
    """Whether decisions have a loss of their own."""
    return stopping.use in ("hazard", "all_action")


def stop_loss_of(model: ModelPlan, stopping: StoppingSection, workflow_deciders: frozenset[str]) -> str:
    """The loss of a model's stop decisions; empty where it takes none, or they have no loss of their own."""
    mine = {role.name for role in model.roles if not role.section.frozen} & workflow_deciders
    return stopping.use if mine and learns_stops(stopping) else ""


def stop_losses(resolved: Resolved) -> dict[str, tuple[str, float]]:
    """By id of the models that learn when to stop: the loss of their decisions, and its weight."""
    who = deciders(resolved.workflow)
    named = {m.model_id: stop_loss_of(m, resolved.stopping, who) for m in resolved.trained}
    return {model_id: (name, resolved.stopping.coefficient) for model_id, name in named.items() if name}


def check_stopping(resolved: Resolved) -> None:
    """Refuse settings of [stopping] that have no effect or can't be kept.

    Raises:
        UsageError: the first of them, with what to do.
    """
    stopping, who = resolved.stopping, deciders(resolved.workflow)
    default = StoppingSection()
    for key, uses in _OF_USE.items():
        if getattr(stopping, key) != getattr(default, key) and stopping.use not in uses:
            raise UsageError(
                f"stopping.{key} = {getattr(stopping, key)!r} has no effect with stopping.use = "
                f'"{stopping.use}"; remove it, or set stopping.use to {" or ".join(uses)}'
            )
    _check_engines(resolved)
    if stopping.use == "off":
        return
    if not who:
        raise UsageError(
            f'stopping.use = "{stopping.use}" has no effect: no role of workflow {resolved.workflow.name!r} '
            "decides on a stop; set option learned_stop of mask, code, evaluate_optimise or debate, or give "
            "a role of your own options and decides=Act.STOP"
        )
    if stopping.budget is not None and not stopping.price:
        raise UsageError(
            f"stopping.budget = {stopping.budget:g} steers the price by factors, and stopping.price is 0: "
            "set the price that it begins with, for example a tenth of the reward over the budget"
        )
    if stopping.budget is None and stopping.price_step != default.price_step:
        raise UsageError("stopping.price_step has no effect without stopping.budget; remove it, or set one")
    if resolved.schedule.use != "simultaneous":
        raise UsageError(
            f'stopping.use = "{stopping.use}" goes with schedule.use = "simultaneous", not with '
            f'"{resolved.schedule.use}": blocks of an iteration do not probe each other\'s decisions'
        )
    if learns_stops(stopping):
        _check_learners(resolved, who)


def _check_engines(resolved: Resolved) -> None:
    for name, role in resolved.workflow.roles.items():
        plan = resolved.roles[name]
        engine = resolved.model_sections[plan.model_id].engine
        if role.options and not hasattr(engine_class(engine), "weigh"):
            raise UsageError(
                f"role {name!r} chooses among {', '.join(map(repr, role.options))} by how likely its model "
                f'finds each, which engine = "{engine}" of model {plan.model_id!r} can\'t say; use "vllm" or '
                '"torch", or leave the decision to a rule of the workflow'
            )


def _check_learners(resolved: Resolved, who: frozenset[str]) -> None:
    learners = [m for m in resolved.trained if stop_loss_of(m, resolved.stopping, who)]
    if not learners:
        raise UsageError(
            f'stopping.use = "{resolved.stopping.use}" trains role {", ".join(sorted(who))}, whose model is '
            'not trained or whose role is frozen; train it, or use "measure"'
        )
    if resolved.measure.gradients != "off":
        raise UsageError(
            f'stopping.use = "{resolved.stopping.use}" does not go with measure.gradients = '
            f'"{resolved.measure.gradients}": gradients of decisions are of no role\'s tokens; set one of '
            "them to off"
        )
    for model in learners:
        if {role.name for role in model.roles if not role.section.frozen} - who:
            continue
        for key, is_set in (
            ("trust_region.radius", model.trust.radius is not None),
            ("critic", model.critic),
        ):
            if is_set:
                raise UsageError(
                    f"{key} acts on tokens of replies, and model {model.model_id!r} only decides on stops; "
                    "set it for other models alone"
                )


def stopping_words(resolved: Resolved) -> str | None:
    """What [stopping] will do, in words; None where no role decides on a stop."""
    stopping, who = resolved.stopping, deciders(resolved.workflow)
    if not who:
        return None
    names = ", ".join(sorted(who))
    if stopping.use == "off":
        return f"off: decisions of {names} are trained as any other turn"
    course = (
        "training's episodes go on to their end" if holds_stops(stopping) else "episodes stop where it says"
    )
    learns = f"learns by {stopping.use}" if learns_stops(stopping) else "learns nothing of it"
    more = f", {stopping.epsilon:.0%} of stops are played on" if stopping.use == "all_action" else ""
    steered = "" if stopping.budget is None else f", steered to {stopping.budget:g} an episode"
    return (
        f"{names} {learns}: {course}{more}, up to {stopping.probes} probe(s) a decision, price "
        f"{stopping.price:g} for each of {stopping.cost}{steered}"
    )


def stop_stages(
    resolved: Resolved, reward: RewardStage, partitions: Mapping[str, PartitionSpec]
) -> tuple[list[Stage], list[Stage]]:
    """The stages after the rewards, and those after the partition; none where stopping is off."""
    stopping = resolved.stopping
    if stopping.use == "off":
        return [], []
    epsilon = stopping.epsilon if stopping.use == "all_action" else 0.0
    spec = StopSpec(
        stopping.cost, stopping.price, holds_stops(stopping), resolved.workflow.answer_step, epsilon
    )
    budget = None if stopping.budget is None else Budget(stopping.budget, stopping.price_step)
    probe = ProbeStage(
        stopping.probes, epsilon, resolved.run.seed, stall_seconds=resolved.cluster.player_call_seconds
    )
    valued: list[Stage] = [probe, ProbeRewardStage(reward), StopsStage(spec, budget)]
    who = deciders(resolved.workflow)
    models = tuple(
        replace(partitions[model.model_id], by_role=False)
        for model in resolved.trained
        if stop_loss_of(model, stopping, who)
    )
    return valued, [StopRowsStage(models)] if models else []


def stop_fingerprints(resolved: Resolved, play: Mapping[str, Any], reward: Any) -> dict[str, dict[str, Any]]:
    """What the stages of [stopping] depend on; {} where it is off."""
    stopping = resolved.stopping
    if stopping.use == "off":
        return {}
    probes = {"probes": stopping.probes, "epsilon": stopping.epsilon, "use": stopping.use}
    return {
        "probe": {**play, **probes},
        "probe_reward": reward,
        "stops": stopping.fingerprint(),
        "stop_rows": {
            "learners": sorted(m.model_id for m in resolved.trained),
            "mini_batches": {m.model_id: m.ppo.mini_batches for m in resolved.trained},
            "micro_batch_tokens": {m.model_id: m.ppo.micro_batch_tokens for m in resolved.trained},
            "ranks": {m.model_id: m.section.trainer.ranks for m in resolved.trained},
        },
    }
