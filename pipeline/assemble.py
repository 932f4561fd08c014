"""From settings to a plan: the model map, the stages in order, and what each is fingerprinted by.

Everything that can be wrong is found here, before Ray starts.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.mlflow_store import tracking_uri
from pipeline.settings import Settings
from pipeline.sharing import fill_sharing, model_map
from rewards.loading import load_credit, load_reward
from rewards.scoring import WeightedReward, WeightedRewards
from stages.base import Stage, check_chain
from stages.checkpoints import CheckpointInfo, describe_checkpoint, resolve_checkpoint
from stages.credit import CreditStage
from stages.engines.base import EngineSpec
from stages.engines.server import check_spec, resolve_kind
from stages.partition import PartitionSpec, PartitionStage
from stages.player import PlayerSpec
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.training.spec import TrainerSpec
from stages.update import UpdateStage
from workflows.data.tasks import LoadedTasks, choose, load_tasks
from workflows.errors import UsageError
from workflows.graph import Workflow
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.play import PlayLimits
from workflows.roles import RoleSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run needs, checked."""

    settings: Settings
    workflow: Workflow
    models: ModelMap
    tasks: LoadedTasks
    checkpoints: Mapping[str, CheckpointInfo]  # by model id; none for scripted engines
    engine_specs: Mapping[str, EngineSpec]
    trainer_specs: Mapping[str, TrainerSpec]
    player_spec: PlayerSpec
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]  # by stage name
    identity: Mapping[str, Any]  # what may not change under one run name


def assemble(settings: Settings) -> Plan:
    """Check settings against the workflow, the data, the plug-ins and the checkpoints.

    Raises:
        UsageError: the first thing that can't work, with what to do.
    """
    workflow = load_workflow(settings.workflow.use, settings.workflow.options)
    settings = fill_sharing(settings, list(workflow.roles))
    models = model_map(settings)
    roles = role_settings(settings, workflow)
    tasks = load_tasks(
        settings.data.path,
        format=settings.data.format,
        columns=settings.data.columns or None,
        max_bad_share=settings.data.max_bad_share,
    )
    choose(tasks.tasks, settings.data.split, settings.run.seed, 0, settings.data.tasks_per_iteration)
    for tool in workflow.tools.values():
        if check := getattr(tool, "check", None):
            check()
    engine_specs, checkpoints = _engines(settings, models)
    trainer_specs = {m.model_id: _trainer(settings, m, engine_specs) for m in models.trainable}
    player_spec = _player(settings, models, roles)
    if settings.tracking.uri != "none":
        tracking_uri(settings.tracking.uri, settings.run.root)
    stages = _stages(settings, workflow, models, tasks)
    check_chain(stages)
    return Plan(
        settings=settings,
        workflow=workflow,
        models=models,
        tasks=tasks,
        checkpoints=checkpoints,
        engine_specs=engine_specs,
        trainer_specs=trainer_specs,
        player_spec=player_spec,
        stages=tuple(stages),
        fingerprints=_fingerprints(settings, stages),
        identity=_identity(settings, tasks),
    )


def role_settings(settings: Settings, workflow: Workflow) -> dict[str, RoleSettings]:
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
    specs, infos = {}, {}
    for model in models.models.values():
        section = settings.models[model.model_id]
        kind = resolve_kind(section.engine)
        folder = ""
        if kind != "scripted" or model.trainable:
            folder = resolve_checkpoint(section.checkpoint)
            info = infos[model.model_id] = describe_checkpoint(folder)
            if info.max_positions and section.max_model_len > info.max_positions:
                raise UsageError(
                    f"models.{model.model_id}.max_model_len = {section.max_model_len}, but the checkpoint "
                    f"{section.checkpoint!r} knows {info.max_positions} positions; lower it"
                )
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
        )
        check_spec(specs[model.base_id])
    return specs, infos


def _threads_of_an_engine(settings: Settings, models: ModelMap) -> int:
    """Threads of each engine on this machine's CPU; 0, which is all cores, where it is the only one.

    Engines of one team decode at the same time. With more threads than cores between them they wait
    for each other at every layer: three engines of two threads on two cores sample 3 tokens/s
    together, where one alone samples 200.
    """
    cpu_engines = {m.base_id for m in models.models.values() if not settings.models[m.model_id].num_gpus}
    if len(cpu_engines) < 2 or settings.cluster.address != "local":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // len(cpu_engines))


def _trainer(settings: Settings, model: Model, engines: Mapping[str, EngineSpec]) -> TrainerSpec:
    trainer, ppo = settings.models[model.model_id].trainer, settings.ppo_of(model.model_id)
    return TrainerSpec(
        model_id=model.model_id,
        base_id=model.base_id,
        checkpoint=engines[model.base_id].checkpoint,
        **trainer.model_dump(),
        **ppo.model_dump(exclude={"mini_batches", "micro_batch_tokens"}),
        seed=settings.run.seed,
    )


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
        options=settings.workflow.options,
        models=models,
        roles=roles,
        limits=limits,
        run_seed=settings.run.seed,
        max_in_flight=-(-rollout.max_in_flight // rollout.players),
    )


def _stages(settings: Settings, workflow: Workflow, models: ModelMap, tasks: LoadedTasks) -> list[Stage]:
    data, rollout = settings.data, settings.rollout
    method = load_credit(settings.credit.use, settings.credit.options)
    if check := getattr(method, "check", None):
        check(group_size=rollout.group_size)
    sample = SampleStage(
        tasks=tasks.tasks,
        split=data.split,
        seed=settings.run.seed,
        tasks_per_iteration=data.tasks_per_iteration,
        tasks_per_shard=rollout.tasks_per_shard,
    )
    specs = tuple(_partition_spec(settings, m) for m in models.trainable)
    return [
        sample,
        RolloutStage(rollout.group_size, rollout.max_in_flight, rollout.max_failed_share),
        RewardStage(weighted_rewards(settings, workflow), settings.credit.truncated),
        CreditStage(method),
        PartitionStage(specs),
        *(UpdateStage(m) for m in models.trainable),
    ]


def _partition_spec(settings: Settings, model: Model) -> PartitionSpec:
    ppo = settings.ppo_of(model.model_id)
    return PartitionSpec(
        model_id=model.model_id,
        ranks=settings.models[model.model_id].trainer.ranks,
        mini_batches=ppo.mini_batches,
        micro_batch_tokens=ppo.micro_batch_tokens,
        seed=settings.run.seed,
    )


def weighted_rewards(settings: Settings, workflow: Workflow) -> WeightedRewards:
    """The configured rewards with their weights; the workflow and the roles give the obvious options."""
    items = []
    for section in settings.rewards:
        name = section.name or section.use.rsplit(":", 1)[-1].rsplit(".", 1)[-1]
        options = dict(section.options)
        if section.use == "format":
            options.setdefault("weights", {r: s.format_weight for r, s in settings.roles.items()})
        if section.use == "token_f1" and workflow.answer_step:
            options.setdefault("answer_step", workflow.answer_step)
        items.append(WeightedReward(name, section.weight, load_reward(section.use, options)))
    return WeightedRewards(tuple(items))


def _fingerprints(settings: Settings, stages: list[Stage]) -> dict[str, dict[str, Any]]:
    """What each stage's result depends on beside its inputs. Throughput settings are left out."""
    dump = settings.model_dump(mode="json")
    rollout = {k: v for k, v in dump["rollout"].items() if k not in {"max_in_flight", "players"}}
    models = {
        m: {k: v for k, v in s.items() if k not in {"trainer", "ppo"}} for m, s in dump["models"].items()
    }
    fingerprints: dict[str, dict[str, Any]] = {
        "sample": {
            "data": dump["data"],
            "seed": settings.run.seed,
            "shard": settings.rollout.tasks_per_shard,
        },
        "rollout": {
            "workflow": dump["workflow"],
            "workflow_source": source_hash(settings.workflow.use),
            "roles": {
                r: {k: v for k, v in s.items() if k != "format_weight"} for r, s in dump["roles"].items()
            },
            "models": models,
            "rollout": rollout,
            "seed": settings.run.seed,
        },
        "reward": {
            "rewards": dump["rewards"],
            "sources": {s.use: source_hash(s.use) for s in settings.rewards},
            "format_weights": {r: s["format_weight"] for r, s in dump["roles"].items()},
            "truncated": settings.credit.truncated,
        },
        "credit": {"credit": dump["credit"], "source": source_hash(settings.credit.use)},
        "partition": {
            m: {"ranks": settings.models[m].trainer.ranks, "ppo": settings.ppo_of(m).model_dump(mode="json")}
            for m in settings.models
        },
    }
    for stage in stages:
        if stage.name.startswith("update/"):
            model_id = stage.name.removeprefix("update/")
            fingerprints[stage.name] = {
                "ppo": settings.ppo_of(model_id).model_dump(mode="json"),
                "trainer": settings.models[model_id].trainer.model_dump(mode="json"),
                "checkpoint": settings.models[model_id].checkpoint,
            }
    return fingerprints


def _identity(settings: Settings, tasks: LoadedTasks) -> dict[str, Any]:
    """What a run is: another workflow, model, model map, data or seed is another run."""
    rows = hashlib.blake2b("".join(tasks.tasks["row_hash"].to_pylist()).encode(), digest_size=16)
    return {
        "workflow": settings.workflow.model_dump(mode="json"),
        "models": {m: s.checkpoint for m, s in settings.models.items()},
        "roles": {r: s.model for r, s in settings.roles.items()},
        "data": {"path": settings.data.path, "split": settings.data.split, "rows": rows.hexdigest()},
        "tasks_per_iteration": settings.data.tasks_per_iteration,
        "seed": settings.run.seed,
    }


def source_hash(use: str) -> str | None:
    """Hash of a plug-in's source file, or None for a built-in (the package version covers it)."""
    if ":" not in use:
        return None
    from workflows.loading import load_object

    try:
        file = inspect.getsourcefile(inspect.unwrap(load_object(use)))
    except TypeError:
        return None
    if file is None:
        return None
    with open(file, "rb") as source:
        return hashlib.blake2b(source.read(), digest_size=16).hexdigest()
