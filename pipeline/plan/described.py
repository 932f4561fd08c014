"""Parts of a plan as plain values, for `check`: models, algorithms, rewards, sampling, the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.plan.algorithm import Algorithm
from pipeline.plan.assemble import Plan, assemble_evaluation
from pipeline.settings.schema import EvaluateSection, RewardSection
from stages.engines.kinds import engine_class
from stages.weights.precision import is_rounded
from workflows.errors import UsageError


def model_values(plan: Plan, model_id: str) -> dict[str, Any]:
    """What a model is, what samples it and how it is trained; `note` is what a person should know of it."""
    model = plan.models.models[model_id]
    spec = plan.engine_specs[model.base_id]
    info = plan.checkpoints.get(model_id)
    trainer = plan.trainer_specs.get(model_id)
    words = engine_class(spec.kind).described(spec)
    values: dict[str, Any] = {
        "checkpoint": model.checkpoint if info else None,
        "architecture": info.architecture if info else None,
        "parameters": info.parameters if info else None,
        "base": model.base_id if model.base_id != model_id else None,
        "engine": spec.kind,
        "replicas": spec.replicas,
        "endpoint": words,
        "max_model_len": spec.max_model_len,
        "trained": trainer is not None,
        "note": None,
    }
    if trainer is None:
        return values
    if (
        info
        and engine_class(spec.kind).has_weights
        and is_rounded(trainer.precision, spec.dtype, spec.num_gpus, info.dtype)
    ):
        values["note"] = (
            "sampled with fewer digits than it is trained with, so small steps are not seen: set "
            f'models.{model_id}.dtype = "float32", or its trainer.precision = "bf16"'
        )
    return values | {
        "adapter_rank": trainer.adapter.rank if trainer.adapter else None,
        "ranks": trainer.ranks,
        "zero_stage": trainer.zero_stage,
        "precision": trainer.precision,
        "learning_rate": plan.resolved.model_plans[model_id].ppo.learning_rate,
    }


def algorithm_values(algorithm: Algorithm) -> dict[str, Any]:
    """How a model learns."""
    loss, reference = algorithm.loss, algorithm.reference
    in_reward = algorithm.tokens.reward_kl.is_on
    return {
        "loss": loss.name,
        "clip": [loss.clip_low, loss.clip_high],
        "stop_loss": loss.stop_loss or None,
        "normalisation": loss.normalisation,
        "entropy_coefficient": loss.entropy_coefficient,
        "critic": algorithm.critic.kind if algorithm.critic else None,
        "value_heads": list(algorithm.critic.roles) if algorithm.critic else [],
        "kl_reference": reference.checkpoint if reference else None,
        "kl_in": ("reward" if in_reward else "loss") if reference else None,
        "kl_target": algorithm.tokens.kl_control.target if algorithm.tokens.kl_control else None,
        "importance": algorithm.tokens.importance.correction,
        "schedule": algorithm.schedule.kind,
        "warmup_updates": algorithm.schedule.warmup_updates,
    }


def reward_values(sections: Sequence[RewardSection]) -> list[dict[str, Any]]:
    """The rewards in their order."""
    return [
        {
            "name": section.label,
            "use": section.use,
            "weight": section.weight,
            "roles": list(section.roles) if section.roles is not None else None,
            "steps": list(section.steps) if section.steps is not None else None,
            "options": dict(section.options),
        }
        for section in sections
    ]


def sampling_values(plan: Plan) -> dict[str, dict[str, Any]]:
    """How each role samples."""
    values = {}
    for name, role in plan.resolved.roles.items():
        sampling = role.sampling
        values[name] = {
            "model": role.model_id,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop),
            "max_response_tokens": role.response_limit,
            "max_prompt_tokens": sampling.max_prompt_tokens,
            "demonstrations": sampling.demonstrations and bool(plan.workflow.roles[name].demonstrations),
            "frozen": role.section.frozen,
        }
    return values


def evaluation_values(plan: Plan) -> dict[str, Any]:
    """What evaluations play and measure; `problem` says why they can't, and `is_asked` whether the settings
    ask for any."""
    section = plan.resolved.evaluate
    values: dict[str, Any] = {
        "split": section.split,
        "samples": section.samples,
        "temperature": section.temperature,
        **{name: getattr(section, name) for name in ("top_p", "top_k", "min_p")},  # None: as of each role
        "every": section.every,
        "is_asked": section != EvaluateSection(),
        "tasks": None,
        "metrics": [],
        "best": None,
        "best_by": None,
        "also": [],
        "problem": None,
    }
    try:
        evaluation = assemble_evaluation(plan)
    except UsageError as error:
        return values | {"problem": str(error)}
    return values | {
        "tasks": evaluation.num_tasks,
        "metrics": list(evaluation.metrics.names),
        "best": evaluation.best,
        "best_by": evaluation.best_by,
        "also": [
            {
                "label": other.label,
                "tasks": other.num_tasks,
                "plays": section.vote.answers if other.is_vote and section.vote else section.samples,
                "tokens": other.vote_tokens,
                "always": other.always,
            }
            for other in evaluation.also
        ],
    }
