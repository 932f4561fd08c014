"""What engines and players are made from, out of the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline.plan.trainers import adapter_of
from pipeline.settings.schema import Settings
from stages.engines.base import EngineSpec
from stages.engines.kinds import check_spec, engine_class, resolve_kind
from stages.players.actor import PlayerSpec
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.roles import RoleSettings
from workflows.script import AnyWorkflow


def role_settings(settings: Settings, workflow: AnyWorkflow) -> dict[str, RoleSettings]:
    """What each role samples with. Training refuses sampling whose logprobs would not be the policy's.

    Raises:
        UsageError: such sampling, or an answer that leaves no room for a prompt.
    """
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


def engine_specs(
    settings: Settings, models: ModelMap
) -> tuple[dict[str, EngineSpec], dict[str, CheckpointInfo]]:
    """The engine of each base by its id, and what the checkpoint of each model holds by model id.

    Raises:
        UsageError: a checkpoint, an adapter or an engine's options can't work.
    """
    specs: dict[str, EngineSpec] = {}
    infos: dict[str, CheckpointInfo] = {}
    for model in models.models.values():
        section = settings.models[model.model_id]
        kind = resolve_kind(section.engine)
        engine = engine_class(kind)
        _check_trainable(model, kind)
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
            num_threads=_threads_of_an_engine(settings, models),
            seed=settings.run.seed,
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


def _threads_of_an_engine(settings: Settings, models: ModelMap) -> int:
    """Threads of each engine on this machine's CPU; 0, which is all cores, where it is the only one.

    Engines of one team decode at the same time. With more threads than cores between them they wait
    for each other at every layer: three engines of two threads on two cores sample 3 tokens/s
    together, where one alone samples 200.
    """
    cpu_engines = {
        m.base_id
        for m in models.models.values()
        if not settings.models[m.model_id].num_gpus
        and not engine_class(settings.models[m.model_id].engine).is_remote
    }
    if len(cpu_engines) < 2 or settings.cluster.address != "local":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // len(cpu_engines))


def player_spec(
    settings: Settings, models: ModelMap, roles: Mapping[str, RoleSettings], options: Mapping[str, Any]
) -> PlayerSpec:
    """What each player plays, with the workflow's `options`."""
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
        options=options,
        models=models,
        roles=roles,
        limits=limits,
        run_seed=settings.run.seed,
        max_in_flight=-(-rollout.max_in_flight // rollout.players),
    )
