"""From settings to a plan: the model map, engines and trainers, the stages in order.

Everything that can be wrong is found here, before Ray starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan.algorithm import Algorithm, leave_out_silent, truncated_rule
from pipeline.plan.blocks import Schedule, load_schedule
from pipeline.plan.channels import channel_mix, check_counterfactuals, replay_stages, replays
from pipeline.plan.engines import engine_specs, player_spec
from pipeline.plan.evaluation import EvaluationPlan, evaluation_plan, metric_sections
from pipeline.plan.fingerprints import fingerprints_of, identity_of
from pipeline.plan.resolve import ModelPlan, Resolved, load_and_resolve
from pipeline.plan.rewards import check_returns, measured_sections, rewards_of
from pipeline.plan.stopping import deciders, learns_stops, stop_stages
from pipeline.plan.task_fields import check_task_fields
from pipeline.plan.templates import check_templates
from pipeline.plan.trainers import algorithms_of, trainer_spec, update_stages
from pipeline.plan.trial import check_trials, trials_of, tried
from pipeline.settings.schema import DataPath, Settings
from pipeline.store.folder import check_root
from pipeline.tracking.mlflow_store import tracking_uri
from rewards.base import Credit, CreditHooks
from rewards.loading import load_credit
from stages.base import Stage, check_chain
from stages.credit import CreditStage
from stages.engines.base import EngineSpec
from stages.greedy import GreedyRewardStage, greedy_rollout
from stages.partition import PartitionSpec, PartitionStage
from stages.players.actor import PlayerSpec
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.training.spec import TrainerSpec
from stages.weights.checkpoints import CheckpointInfo
from workflows.data.tasks import LoadedTasks, choose, load_tasks
from workflows.errors import UsageError
from workflows.hooks import ToolHooks, hooks_of
from workflows.models import ModelMap
from workflows.script import AnyWorkflow
from workflows.teams.imported import check_playable


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run needs, checked."""

    resolved: Resolved
    tasks: LoadedTasks
    checkpoints: Mapping[str, CheckpointInfo]  # by model id; none for scripted engines
    engine_specs: Mapping[str, EngineSpec]
    trainer_specs: Mapping[str, TrainerSpec]
    algorithms: Mapping[str, Algorithm]  # by id of the models that are trained
    player_spec: PlayerSpec
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]  # by stage name
    identity: Mapping[str, Any]  # what may not change under one run name
    schedule: Schedule  # cuts an iteration's stages into blocks

    @property
    def settings(self) -> Settings:
        """The settings that the run keeps, in which every role has its model."""
        return self.resolved.settings

    @property
    def workflow(self) -> AnyWorkflow:
        return self.resolved.workflow

    @property
    def models(self) -> ModelMap:
        return self.resolved.models


def assemble(settings: Settings) -> Plan:
    """Check settings against the workflow, the data, the plug-ins and the checkpoints.

    Raises:
        UsageError: the first thing that can't work, with what to do.
    """
    check_root(settings.run.root, settings.run.name)
    resolved = load_and_resolve(settings)
    check_playable(resolved.workflow_section.use)
    run, data = resolved.run, resolved.data
    tasks = check_task_fields(resolved.workflow, _load_tasks(resolved, data.path), data.split)
    choose(tasks.tasks, data.split, run.seed, 0, data.tasks_per_iteration)
    for tool in resolved.workflow.tools.values():
        hooks_of(tool, ToolHooks).check_ready()
    models = list(resolved.model_plans.values())
    engines, checkpoints = engine_specs(models, resolved.cluster, run.seed)
    check_templates(resolved, engines)
    method = credit_method(resolved)
    check_counterfactuals(resolved)
    by_model = algorithms_of(resolved, method)
    trainers = {}
    for of_model in resolved.trained:
        engine = engines[of_model.model.base_id]
        adapter = engine.adapters.get(of_model.model_id)
        trainers[of_model.model_id] = trainer_spec(
            of_model, engine.checkpoint, adapter, by_model[of_model.model_id], resolved
        )
    player = player_spec(resolved)
    if resolved.tracking.uri != "none":
        tracking_uri(resolved.tracking.uri, run.root)
    held_out = tasks
    if tried(resolved) and resolved.evaluate.path is not None:
        held_out = _load_tasks(resolved, resolved.evaluate.path)
    stages = _stages(resolved, tasks, method, by_model, held_out)
    check_chain(stages)
    plan = Plan(
        resolved=resolved,
        tasks=tasks,
        checkpoints=checkpoints,
        engine_specs=engines,
        trainer_specs=trainers,
        algorithms=by_model,
        player_spec=player,
        stages=tuple(stages),
        fingerprints=fingerprints_of(resolved, stages, by_model),
        identity=identity_of(resolved, tasks),
        schedule=load_schedule(resolved.schedule.use, resolved.schedule.options),
    )
    plan.schedule.check(plan)
    check_trials(plan)
    return plan


def assemble_evaluation(plan: Plan) -> EvaluationPlan:
    """What evaluations of this plan's team need, checked like the plan itself.

    Raises:
        UsageError: [evaluate] does not fit the data, the rewards or the roles.
    """
    resolved, section = plan.resolved, plan.resolved.evaluate
    tasks = plan.tasks if section.path is None else _load_tasks(resolved, section.path)
    tasks = check_task_fields(resolved.workflow, tasks, section.split)
    sections = metric_sections(section, resolved.rewards)
    metrics = rewards_of(sections, resolved)
    return evaluation_plan(resolved, metrics, tasks, plan.player_spec)


def _load_tasks(resolved: Resolved, path: DataPath) -> LoadedTasks:
    data = resolved.data
    return load_tasks(
        path,
        format=data.format,
        columns=data.columns or None,
        max_bad_share=data.max_bad_share,
        public_tests=data.public_tests,
        limit=data.limit,
        repeats=data.repeats,
        delimiter=data.delimiter,
        encoding=data.encoding,
        packages=resolved.sandbox.packages,
    )


def credit_method(resolved: Resolved) -> Credit:
    """The credit method, checked against the group size where its advantages are used.

    Raises:
        UsageError: it can't be used so.
    """
    method = load_credit(str(resolved.credit.use), resolved.credit.options)
    hooks = hooks_of(method, CreditHooks)
    if resolved.advantage.use == "from_credit":
        hooks.check_group_size(group_size=resolved.rollout.group_size)
    elif hooks.needs_greedy:
        raise UsageError(
            f'credit.use = "{resolved.credit.use}" has no effect with [advantage] use = "gae", which would '
            'play every task once more and not read it; use [advantage] use = "from_credit", or another '
            "credit.use"
        )
    return method


def _stages(
    resolved: Resolved,
    tasks: LoadedTasks,
    method: Credit,
    by_model: Mapping[str, Algorithm],
    held_out: LoadedTasks,
) -> list[Stage]:
    data, rollout = resolved.data, resolved.rollout
    sample = SampleStage(
        tasks=tasks.tasks,
        split=data.split,
        seed=resolved.run.seed,
        tasks_per_iteration=data.tasks_per_iteration,
        tasks_per_shard=rollout.tasks_per_shard,
        always_first=data.always_first,
        remarks=tuple(tasks.remarks),
    )
    play = RolloutStage(
        rollout.group_size,
        rollout.in_flight,
        rollout.max_failed_share,
        stall_seconds=resolved.cluster.player_call_seconds,
    )
    needs_greedy = hooks_of(method, CreditHooks).needs_greedy
    credited = credited_stages(resolved, method, replays(resolved, method))
    partition = partition_stage(resolved)
    reward = next(stage for stage in credited if isinstance(stage, RewardStage))
    valued, decided = stop_stages(resolved, reward, {spec.model_id: spec for spec in partition.models})
    return [
        sample,
        play,
        *([greedy_rollout(play)] if needs_greedy else []),
        *_with_stops(credited, valued),
        partition,
        *decided,
        *update_stages(
            resolved.models,
            by_model,
            by_role=resolved.measure.gradients != "off",
            within=resolved.within_trust,
            ratios=resolved.measures_ratios,
            trials=trials_of(resolved, held_out.tasks, play, reward),
        ),
    ]


def _with_stops(credited: Sequence[Stage], valued: Sequence[Stage]) -> list[Stage]:
    """Stop decisions are valued after the credit, or before it where a channel of it reads what they were
    worth."""
    *before, credit = credited
    if "stops" in credit.inputs:
        return [*before, *valued, credit]
    return [*credited, *valued]


def credited_stages(resolved: Resolved, method: Credit, replayed: Sequence[Stage] = ()) -> list[Stage]:
    """The rewards of what was played, and who gets the credit.

    Args:
        resolved: the settings.
        method: the credit method.
        replayed: stages that replay messages; what only looks at stored replays leaves them out.
    """
    check_returns([*resolved.rewards, *resolved.evaluate.rewards], resolved.workflow)
    sections = measured_sections(resolved.rewards, resolved.workflow)
    rewards = rewards_of(sections, resolved)
    reward = RewardStage(rewards, truncated_rule(resolved.credit))
    return [
        reward,
        *([GreedyRewardStage(reward)] if hooks_of(method, CreditHooks).needs_greedy else []),
        *replayed,
        *replay_stages(resolved, reward),
        CreditStage(
            method,
            leave_out_silent(resolved.credit, rewards.names),
            mask_truncated=resolved.credit.truncated == "mask",
            mix=channel_mix(resolved),
        ),
    ]


def partition_stage(resolved: Resolved) -> PartitionStage:
    """How the rows of every trained model are cut."""
    by_role = resolved.measure.gradients != "off"
    specs = tuple(_partition_spec(model, resolved.run.seed, by_role) for model in resolved.trained)
    return PartitionStage(
        specs,
        resolved.frozen_roles,
        decided_roles=deciders(resolved.workflow) if learns_stops(resolved.stopping) else frozenset(),
    )


def _partition_spec(model: ModelPlan, seed: int, by_role: bool) -> PartitionSpec:
    trainer = model.section.trainer
    return PartitionSpec(
        model_id=model.model_id,
        ranks=trainer.ranks,
        mini_batches=model.ppo.mini_batches,
        micro_batch_tokens=model.ppo.micro_batch_tokens,
        seed=seed,
        shared_prefix=trainer.shared_prefix,
        by_role=by_role,
    )
