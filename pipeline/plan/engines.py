"""What the engines and the players of a plan are made from."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace

from pipeline.plan.resolve import ModelPlan, Resolved
from pipeline.plan.stopping import holds_stops
from pipeline.plan.trainers import adapter_of
from pipeline.settings.schema import ClusterSection
from stages.engines.base import EngineSpec
from stages.engines.kinds import check_spec, engine_class, resolve_kind
from stages.players.actor import PlayerSpec
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError
from workflows.models import Model
from workflows.playing.attempts import PlayLimits


def engine_specs(
    models: Collection[ModelPlan], cluster: ClusterSection, seed: int
) -> tuple[dict[str, EngineSpec], dict[str, CheckpointInfo]]:
    """The engine of each base by its id, and what the checkpoint of each model holds by model id.

    Raises:
        UsageError: a checkpoint, an adapter or an engine's options can't work.
    """
    specs: dict[str, EngineSpec] = {}
    infos: dict[str, CheckpointInfo] = {}
    _check_restarts(models, cluster)
    for plan in models:
        model, section = plan.model, plan.section
        kind = resolve_kind(section.engine)
        engine = engine_class(kind)
        _check_trainable(model, kind)
        _check_replicas(plan, kind)
        folder = engine.tokenizer_folder(section.engine_options, f"models.{model.model_id}")
        if engine.needs_checkpoint or model.trainable:
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
            replicas=section.replicas,
            restarts=cluster.engine_restarts,
            num_threads=_threads_of_an_engine(models, cluster),
            seed=seed,
            options=section.engine_options,
            template_options=section.template_options,
            adapters=adapters,
        )
        check_spec(specs[model.base_id])
    return specs, infos


def _check_trainable(model: Model, kind: str) -> None:
    if model.trainable and not engine_class(kind).trainable:
        raise UsageError(
            f'models.{model.model_id} has engine = "{kind}" and train = true, but the models of that engine '
            f"have no weights here that could be trained; set models.{model.model_id}.train = false, or give "
            "it a checkpoint and another engine"
        )


def _check_replicas(plan: ModelPlan, kind: str) -> None:
    if plan.section.replicas > 1 and engine_class(kind).is_remote:
        raise UsageError(
            f"models.{plan.model_id}.replicas = {plan.section.replicas} has no effect: the model of engine "
            f'"{kind}" is elsewhere, and nothing is started for it here; remove it, and put replicas behind '
            "its address"
        )


def _check_restarts(models: Collection[ModelPlan], cluster: ClusterSection) -> None:
    if cluster.engine_restarts != ClusterSection().engine_restarts and all(
        plan.section.replicas == 1 for plan in models
    ):
        raise UsageError(
            f"cluster.engine_restarts = {cluster.engine_restarts} has no effect with replicas = 1 of every "
            "model: an engine without replicas is not started anew; remove it, or set models.<id>.replicas"
        )


def _threads_of_an_engine(models: Collection[ModelPlan], cluster: ClusterSection) -> int:
    """Threads of each engine on this machine's CPU; 0, which is all cores, where it is the only one.

    Engines of one team decode at the same time. With more threads than cores between them they wait
    for each other at every layer: three engines of two threads on two cores sample 3 tokens/s
    together, where one alone samples 200.
    """
    cpu_engines = {
        plan.model.base_id: plan.section.replicas
        for plan in models
        if not plan.section.num_gpus and not engine_class(plan.section.engine).is_remote
    }
    count = sum(cpu_engines.values())
    if count < 2 or cluster.address != "local":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // count)


def greedy_players(spec: PlayerSpec) -> PlayerSpec:
    """The same players at temperature 0, for the roles whose models are trained."""
    trained = {model.model_id for model in spec.models.trainable}
    roles = {
        name: replace(settings, temperature=0.0)
        if spec.models.model_of(name).model_id in trained
        else settings
        for name, settings in spec.roles.items()
    }
    return replace(spec, roles=roles)


def player_spec(resolved: Resolved) -> PlayerSpec:
    """The workflow, roles, limits and seed of the players that training's rollouts use."""
    rollout = resolved.rollout
    limits = PlayLimits(
        max_turns=rollout.max_turns,
        call_timeout_seconds=rollout.call_timeout_seconds,
        tool_timeout_seconds=rollout.tool_timeout_seconds,
        episode_timeout_seconds=rollout.episode_timeout_seconds,
        call_attempts=rollout.call_attempts,
    )
    return PlayerSpec(
        use=resolved.workflow_section.use,
        options=resolved.options,
        returns=resolved.workflow_section.returns,
        models=resolved.models,
        roles={name: role.sampling for name, role in resolved.roles.items()},
        limits=limits,
        run_seed=resolved.run.seed,
        max_in_flight=-(-rollout.in_flight // rollout.players),
        hold_stops=holds_stops(resolved.stopping),
    )
