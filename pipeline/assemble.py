"""From settings to a plan: the model map, engines and trainers, the stages in order.

Everything that can be wrong is found here, before Ray starts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.algorithm import Algorithm, algorithms, frozen_roles, leave_out_silent
from pipeline.evaluation import EvaluationPlan, evaluation_plan, metric_sections
from pipeline.fingerprints import fingerprints_of, identity_of
from pipeline.mlflow_store import tracking_uri
from pipeline.settings import DataPath, RewardSection, Settings
from pipeline.sharing import fill_sharing, model_map
from pipeline.trainers import adapter_of, response_limits, trainer_spec, update_stages
from rewards.base import Credit
from rewards.loading import load_credit, load_reward, reward_takes
from rewards.scoring import WeightedReward, WeightedRewards
from stages.base import Stage, check_chain
from stages.checkpoints import CheckpointInfo, describe_checkpoint, resolve_checkpoint
from stages.credit import CreditStage
from stages.engines.base import EngineSpec
from stages.engines.openai import tokenizer_folder
from stages.engines.server import REMOTE, check_spec, resolve_kind
from stages.partition import PartitionSpec, PartitionStage
from stages.player import PlayerSpec
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.training.spec import TrainerSpec
from workflows.data.tasks import LoadedTasks, choose, load_tasks
from workflows.errors import UsageError, did_you_mean
from workflows.loading import load_workflow, workflow_takes
from workflows.models import Model, ModelMap
from workflows.play import PlayLimits
from workflows.roles import RoleSettings
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
    workflow = load_workflow(settings.workflow.use, workflow_options(settings))
    settings = fill_sharing(settings, list(workflow.roles))
    models = model_map(settings)
    roles = role_settings(settings, workflow)
    tasks = _load_tasks(settings, settings.data.path)
    choose(tasks.tasks, settings.data.split, settings.run.seed, 0, settings.data.tasks_per_iteration)
    for tool in workflow.tools.values():
        if check := getattr(tool, "check", None):
            check()
    engine_specs, checkpoints = _engines(settings, models)
    method = credit_method(settings)
    learn = algorithms(settings, method, response_limits(settings, workflow))
    trainer_specs = {}
    for model in models.trainable:
        engine, own = engine_specs[model.base_id], learn[model.model_id]
        trainer_specs[model.model_id] = trainer_spec(
            settings, model, engine.checkpoint, engine.adapters.get(model.model_id), own
        )
    player_spec = _player(settings, models, roles)
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
        engine_specs=engine_specs,
        trainer_specs=trainer_specs,
        algorithms=learn,
        player_spec=player_spec,
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
    )


def role_settings(settings: Settings, workflow: AnyWorkflow) -> dict[str, RoleSettings]:
    """What each role samples with. Training refuses sampling whose logprobs would not be the policy's."""
    out = {}
    for role, section in settings.roles.items():
        sampling = section.sampling
        temperature = settings.rollout.temperature if sampling.temperature is None else sampling.temperature
        model = settings.models[str(section.model)]
        if model.train:
            _check_training_sampling(role, temperature, sampling.top_p, sampling.top_k)
        own = section.max_response_tokens or workflow.roles[role].max_response_tokens
        if own >= model.max_model_len:
            raise UsageError(
                f"role {role!r} may answer with {own} tokens, but model {section.model!r} has room for "
                f"{model.max_model_len} with its prompt; raise models.{section.model}.max_model_len"
            )
        out[role] = RoleSettings(
            temperature=temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop=sampling.stop,
            max_response_tokens=section.max_response_tokens,
            max_prompt_tokens=section.max_prompt_tokens,
            demonstrations=section.demonstrations,
        )
    return out


def _check_training_sampling(role: str, temperature: float, top_p: float, top_k: int) -> None:
    if top_p < 1 or top_k > 0:
        raise UsageError(
            f"role {role!r} is trained but samples with top_p = {top_p:g}, top_k = {top_k}: the trainer "
            "needs the probabilities of the whole vocabulary; use top_p = 1 and top_k = 0"
        )
    if temperature == 0:
        raise UsageError(
            f"role {role!r} is trained but samples greedily (temperature 0): every episode of a task would "
            "be the same; use a temperature above 0, for example 1.0"
        )


def _engines(settings: Settings, models: ModelMap) -> tuple[dict[str, EngineSpec], dict[str, CheckpointInfo]]:
    specs: dict[str, EngineSpec] = {}
    infos: dict[str, CheckpointInfo] = {}
    for model in models.models.values():
        section = settings.models[model.model_id]
        kind = resolve_kind(section.engine)
        folder = ""
        if kind == REMOTE:
            folder = _behind_api(model, section.engine_options)
        elif kind != "scripted" or model.trainable:
            folder = resolve_checkpoint(section.checkpoint)
            info = infos[model.model_id] = describe_checkpoint(folder)
            if info.max_positions and section.max_model_len > info.max_positions:
                raise UsageError(
                    f"models.{model.model_id}.max_model_len = {section.max_model_len}, but the checkpoint "
                    f"{section.checkpoint!r} knows {info.max_positions} positions; lower it"
                )
        adapters = dict(specs[model.base_id].adapters) if model.base_id in specs else {}
        if model.adapter is not None:
            adapters[model.model_id] = adapter_of(model, folder)
        specs[model.base_id] = EngineSpec(
            base_id=model.base_id,
            kind=kind,
            checkpoint=folder,
            max_model_len=section.max_model_len,
            dtype=section.dtype,
            max_batch_size=section.max_batch_size,
            kv_cache_gib=section.kv_cache_gib,
            gpu_memory_fraction=section.gpu_memory_fraction,
            num_gpus=section.num_gpus,
            num_threads=_threads_of_an_engine(settings, models),
            seed=settings.run.seed,
            options=section.engine_options,
            template_options=section.template_options,
            adapters=adapters,
        )
        check_spec(specs[model.base_id])
    return specs, infos


def _behind_api(model: Model, options: Mapping[str, Any]) -> str:
    """The folder of the tokenizer that counts prompts for an API, or nothing."""
    if model.trainable:
        raise UsageError(
            f'models.{model.model_id} has engine = "openai" and train = true, but a model behind an API has '
            f"no weights here that could be trained; set models.{model.model_id}.train = false, or give it a "
            "checkpoint and another engine"
        )
    return tokenizer_folder(options, f"models.{model.model_id}")


def _threads_of_an_engine(settings: Settings, models: ModelMap) -> int:
    """Threads of each engine on this machine's CPU; 0, which is all cores, where it is the only one.

    Engines of one team decode at the same time. With more threads than cores between them they wait
    for each other at every layer: three engines of two threads on two cores sample 3 tokens/s
    together, where one alone samples 200.
    """
    cpu_engines = {
        m.base_id
        for m in models.models.values()
        if not settings.models[m.model_id].num_gpus and settings.models[m.model_id].engine != REMOTE
    }
    if len(cpu_engines) < 2 or settings.cluster.address != "local":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // len(cpu_engines))


def _player(settings: Settings, models: ModelMap, roles: Mapping[str, RoleSettings]) -> PlayerSpec:
    rollout = settings.rollout
    limits = PlayLimits(
        max_turns=rollout.max_turns,
        call_timeout_seconds=rollout.call_timeout_seconds,
        tool_timeout_seconds=rollout.tool_timeout_seconds,
        episode_timeout_seconds=rollout.episode_timeout_seconds,
        call_attempts=rollout.call_attempts,
    )
    return PlayerSpec(
        use=settings.workflow.use,
        options=workflow_options(settings),
        models=models,
        roles=roles,
        limits=limits,
        run_seed=settings.run.seed,
        max_in_flight=-(-rollout.max_in_flight // rollout.players),
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
