"""From settings to a plan: the model map, engines and trainers, the stages in order.

Everything that can be wrong is found here, before Ray starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan.algorithm import Algorithm, algorithms, frozen_roles, leave_out_silent
from pipeline.plan.engines import engine_specs, player_spec, role_settings
from pipeline.plan.evaluation import EvaluationPlan, evaluation_plan, metric_sections
from pipeline.plan.fingerprints import fingerprints_of, identity_of
from pipeline.plan.sharing import fill_sharing, model_map
from pipeline.plan.trainers import response_limits, trainer_spec, update_stages
from pipeline.settings.schema import DataPath, RewardSection, Settings
from pipeline.store.folder import check_root
from pipeline.tracking.mlflow_store import tracking_uri
from rewards.base import Credit
from rewards.loading import load_credit, load_reward, reward_takes
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.base import Stage, check_chain
from stages.credit import CreditStage
from stages.engines.base import EngineSpec
from stages.partition import PartitionSpec, PartitionStage
from stages.players.actor import PlayerSpec
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.training.spec import TrainerSpec
from stages.weights.checkpoints import CheckpointInfo
from workflows.data.tasks import LoadedTasks, choose, load_tasks
from workflows.errors import UsageError, did_you_mean
from workflows.loading import load_workflow, workflow_takes
from workflows.models import ModelMap
from workflows.script import AnyWorkflow
from workflows.tools.code.isolation import Sandbox


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run needs, checked."""

    settings: Settings
    workflow: AnyWorkflow
    models: ModelMap
    tasks: LoadedTasks
    checkpoints: Mapping[str, CheckpointInfo]  # by model id; none for scripted engines
    engine_specs: Mapping[str, EngineSpec]
    trainer_specs: Mapping[str, TrainerSpec]
    algorithms: Mapping[str, Algorithm]  # by id of the models that are trained
    player_spec: PlayerSpec
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]  # by stage name
    identity: Mapping[str, Any]  # what may not change under one run name


def assemble(settings: Settings) -> Plan:
    """Check settings against the workflow, the data, the plug-ins and the checkpoints.

    Raises:
        UsageError: the first thing that can't work, with what to do.
    """
    check_root(settings.run.root)
    workflow = load_workflow(settings.workflow.use, workflow_options(settings))
    settings = fill_sharing(settings, list(workflow.roles))
    models = model_map(settings)
    roles = role_settings(settings, workflow)
    tasks = _load_tasks(settings, settings.data.path)
    choose(tasks.tasks, settings.data.split, settings.run.seed, 0, settings.data.tasks_per_iteration)
    for tool in workflow.tools.values():
        if check := getattr(tool, "check", None):
            check()
    engines, checkpoints = engine_specs(settings, models)
    method = credit_method(settings)
    learn = algorithms(settings, method, response_limits(settings, workflow))
    trainers = {}
    for model in models.trainable:
        engine, own = engines[model.base_id], learn[model.model_id]
        adapter = engine.adapters.get(model.model_id)
        trainers[model.model_id] = trainer_spec(settings, model, engine.checkpoint, adapter, own)
    player = player_spec(settings, models, roles, workflow_options(settings))
    if settings.tracking.uri != "none":
        tracking_uri(settings.tracking.uri, settings.run.root)
    stages = _stages(settings, workflow, models, tasks, method, learn)
    check_chain(stages)
    return Plan(
        settings=settings,
        workflow=workflow,
        models=models,
        tasks=tasks,
        checkpoints=checkpoints,
        engine_specs=engines,
        trainer_specs=trainers,
        algorithms=learn,
        player_spec=player,
        stages=tuple(stages),
        fingerprints=fingerprints_of(settings, stages, learn),
        identity=identity_of(settings, tasks),
    )


def assemble_evaluation(plan: Plan) -> EvaluationPlan:
    """What evaluations of this plan's team need, checked like the plan itself.

    Raises:
        UsageError: [evaluate] does not fit the data, the rewards or the roles.
    """
    settings, section = plan.settings, plan.settings.evaluate
    tasks = plan.tasks if section.path is None else _load_tasks(settings, section.path)
    metrics = weighted_rewards(settings, plan.workflow, metric_sections(settings))
    return evaluation_plan(settings, metrics, tasks, plan.player_spec)


def workflow_options(settings: Settings) -> dict[str, Any]:
    """The workflow's options, with the sandbox where it takes one and was given none."""
    options = dict(settings.workflow.options)
    if workflow_takes(settings.workflow.use, "sandbox"):
        options.setdefault("sandbox", sandbox_of(settings))
    return options


def sandbox_of(settings: Settings) -> Sandbox:
    """[sandbox] for those who run programs. It belongs to the machine, so no stage depends on it."""
    return Sandbox(**settings.sandbox.model_dump())


def _load_tasks(settings: Settings, path: DataPath) -> LoadedTasks:
    return load_tasks(
        path,
        format=settings.data.format,
        columns=settings.data.columns or None,
        max_bad_share=settings.data.max_bad_share,
        public_tests=settings.data.public_tests,
        limit=settings.data.limit,
        repeats=settings.data.repeats,
        delimiter=settings.data.delimiter,
        encoding=settings.data.encoding,
    )


def credit_method(settings: Settings) -> Credit:
    """The credit method of the settings, checked against the group size where its advantages are used."""
    method = load_credit(settings.credit_method, settings.credit.options)
    check = getattr(method, "check", None)
    if check and settings.advantage.use == "from_credit":
        check(group_size=settings.rollout.group_size)
    return method


def _stages(
    settings: Settings,
    workflow: AnyWorkflow,
    models: ModelMap,
    tasks: LoadedTasks,
    method: Credit,
    learn: Mapping[str, Algorithm],
) -> list[Stage]:
    data, rollout = settings.data, settings.rollout
    sample = SampleStage(
        tasks=tasks.tasks,
        split=data.split,
        seed=settings.run.seed,
        tasks_per_iteration=data.tasks_per_iteration,
        tasks_per_shard=rollout.tasks_per_shard,
        always_first=data.always_first,
        remarks=tuple(tasks.remarks),
    )
    return [
        sample,
        RolloutStage(rollout.group_size, rollout.max_in_flight, rollout.max_failed_share),
        RewardStage(weighted_rewards(settings, workflow, settings.rewards), settings.credit.truncated),
        CreditStage(method, leave_out_silent(settings)),
        partition_stage(settings, models),
        *update_stages(models, learn),
    ]


def partition_stage(settings: Settings, models: ModelMap) -> PartitionStage:
    """How the rows of every trained model are cut."""
    specs = tuple(_partition_spec(settings, m.model_id) for m in models.trainable)
    return PartitionStage(specs, frozen_roles(settings))


def _partition_spec(settings: Settings, model_id: str) -> PartitionSpec:
    ppo = settings.ppo_of(model_id)
    return PartitionSpec(
        model_id=model_id,
        ranks=settings.models[model_id].trainer.ranks,
        mini_batches=ppo.mini_batches,
        micro_batch_tokens=ppo.micro_batch_tokens,
        seed=settings.run.seed,
        shared_prefix=settings.models[model_id].trainer.shared_prefix,
    )


def weighted_rewards(
    settings: Settings, workflow: AnyWorkflow, sections: Sequence[RewardSection]
) -> WeightedRewards:
    """Rewards with their weights; the workflow and the roles give the obvious options."""
    items = []
    for section in sections:
        name, options = section.label, dict(section.options)
        if section.use == "format":
            options.setdefault("weights", {r: s.format_weight for r, s in settings.roles.items()})
        if workflow.answer_step and reward_takes(section.use, "answer_step"):
            options.setdefault("answer_step", workflow.answer_step)
        if reward_takes(section.use, "sandbox"):
            options.setdefault("sandbox", sandbox_of(settings))
        roles = _named(f"reward {name!r}: roles", section.roles, workflow.roles)
        steps = _named(f"reward {name!r}: steps", section.steps, workflow.order)
        reward = load_reward(section.use, options)
        if check := getattr(reward, "check", None):
            check()
        items.append(WeightedReward(name, section.weight, reward, roles, steps))
    return WeightedRewards(tuple(items))


def _named(what: str, names: Sequence[str] | None, known: Collection[str]) -> frozenset[str] | None:
    """Names of the workflow that settings single out; None: all of them."""
    if names is None:
        return None
    if not names:
        raise UsageError(f"{what} is an empty list, so it would go to nobody; remove it, or name some")
    for name in names:
        if name not in known:
            raise UsageError(
                f"{what} names {name!r}, which the workflow does not have{did_you_mean(name, known)}; "
                f"it has: {', '.join(known)}"
            )
    return frozenset(names)
