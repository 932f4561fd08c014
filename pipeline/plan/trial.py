"""What candidates of models have to stand before they are the next version: `[trust_region] trial_tasks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.resolve import ModelPlan, Resolved
from pipeline.plan.sequential import Sequential
from stages.engines.kinds import engine_class
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.trial import Trial
from workflows.data.tasks import choose
from workflows.errors import UsageError

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan


def tried(resolved: Resolved) -> list[ModelPlan]:
    """The models whose candidates stand a trial."""
    return [plan for plan in resolved.trained if plan.trust.radius is not None and plan.trust.trial_tasks]


def trials_of(
    resolved: Resolved, held_out: pa.Table, rollout: RolloutStage, reward: RewardStage
) -> dict[str, Trial]:
    """The trials, by model.

    Args:
        resolved: the settings.
        held_out: the tasks of evaluations.
        rollout: how training plays.
        reward: how it rewards.

    Raises:
        UsageError: there are not enough tasks that neither training nor evaluations touch, or an engine has
            no weights.
    """
    trials = {}
    for plan in tried(resolved):
        trust, where = (
            plan.trust,
            f"models.{plan.model_id}.trust_region.trial_tasks = {plan.trust.trial_tasks}",
        )
        if not engine_class(plan.section.engine).needs_checkpoint:
            raise UsageError(
                f'{where}: the model speaks by engine = "{plan.section.engine}", which takes no weights, so '
                "plays with a candidate are those without it; set trial_tasks = 0, or use another engine"
            )
        if trust.trial_tasks < 2:
            raise UsageError(f"{where}: a bound on a gain needs 2 tasks at least; use 2 or more, or 0")
        rest = _untouched(resolved, held_out, where)
        trials[plan.model_id] = Trial(
            SampleStage(
                tasks=rest,
                split=resolved.evaluate.split,
                seed=resolved.run.seed,
                tasks_per_iteration=trust.trial_tasks,
                tasks_per_shard=resolved.rollout.tasks_per_shard,
            ),
            RolloutStage(
                trust.trial_samples,
                rollout.max_in_flight,
                rollout.max_failed_share,
                stall_seconds=rollout.stall_seconds,
            ),
            reward,
            trust.z,
            trust.tolerance,
        )
        if rest.num_rows < trust.trial_tasks:
            section = resolved.evaluate
            whole = held_out.filter(pc.equal(held_out["split"], section.split)).num_rows
            raise UsageError(
                f"{where}: of the {whole} tasks of split {section.split!r}, evaluations play "
                f"{section.tasks or 'all'}, which leaves {rest.num_rows}; set evaluate.tasks to "
                f"{max(whole - trust.trial_tasks, 1)} or less, or try fewer"
            )
    return trials


def _untouched(resolved: Resolved, held_out: pa.Table, where: str) -> pa.Table:
    """Tasks that neither training nor evaluations play."""
    section = resolved.evaluate
    if section.split == resolved.data.split and section.path is None:
        raise UsageError(
            f"{where}: [evaluate] split = {section.split!r} is what the team trains on, so a trial there "
            "says nothing of other tasks; set evaluate.split to one that training does not touch"
        )
    of_split = held_out.filter(pc.equal(held_out["split"], section.split))
    if not section.tasks or section.tasks >= of_split.num_rows:
        return of_split.slice(0, 0)
    evaluated = choose(held_out, section.split, resolved.run.seed, 0, section.tasks)["task_id"]
    return of_split.filter(pc.invert(pc.is_in(of_split["task_id"], evaluated)))


def check_trials(plan: Plan) -> None:
    """Refuse a trial of one model where others are trained in the same block: the team with its candidate
    would have theirs as well.

    Raises:
        UsageError: with what to do.
    """
    names = {model.model_id for model in tried(plan.resolved)}
    schedule = plan.schedule
    together: Sequence[Sequence[str]] = [[model.model_id for model in plan.models.trainable]]
    if isinstance(schedule, Sequential):
        together = schedule.units(plan)
    for unit in together:
        if len(unit) > 1 and (on_trial := sorted(names.intersection(unit))):
            raise UsageError(
                f"models.{on_trial[0]}.trust_region.trial_tasks compares the team with and without one "
                f"candidate, and {', '.join(unit)} are trained in the same block; use [schedule] use = "
                '"sequential" without groups of them, or set trial_tasks = 0'
            )


def trust_words(plan: ModelPlan) -> str | None:
    """What the trust region of a model will do, in words; None where it has none."""
    trust = plan.trust
    if trust.radius is None:
        return None
    kept = [
        f"a penalty of {trust.penalty:g}" if trust.penalty else "",
        f"the steps end at {trust.stop_at:g} times it" if trust.stop_at else "",
        f"messages above {trust.mask_above:g} nats are taken out" if trust.mask_above else "",
        f"steps are halved up to {trust.backtrack} times" if trust.backtrack else "",
        "candidates outside are taken back" if trust.reject else "",
        "a lower bound on the gain must hold" if trust.certificate else "",
    ]
    if trust.trial_tasks:
        plays = trust.trial_tasks * trust.trial_samples
        kept.append(
            f"each candidate stands a trial of 2 × {plays} plays on {trust.trial_tasks} held-out tasks"
        )
    done = ", ".join(filter(None, kept)) or "watched only"
    return f"radius {trust.radius:g} nats per {trust.measure} ({trust.estimator}): {done}"


def trial_fingerprint(
    resolved: Resolved, play: Mapping[str, Any], reward: Mapping[str, Any]
) -> dict[str, Any]:
    """What a trial's outcome depends on beside the weights and the settings of the trust region."""
    section = resolved.evaluate.fingerprint()
    tasks = {key: section[key] for key in ("split", "path", "tasks") if key in section}
    return {"play": dict(play), "reward": dict(reward), "tasks": tasks}
