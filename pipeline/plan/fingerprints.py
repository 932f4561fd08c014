"""What a run is, and what each stage's result depends on beside its inputs.

A finished stage is never run again: these are what is compared before it is loaded instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.plan.algorithm import Algorithm
from pipeline.settings.schema import ModelSection, RewardSection, Settings
from stages.base import Stage
from stages.engines.kinds import engine_class
from stages.partition import PartitionStage
from stages.token_advantages.spec import TokenSpec
from workflows.data.tasks import LoadedTasks
from workflows.loading import source_hash

_OF_TRAINED_ROLES = {"format_weight", "ppo", "frozen"}
_LATER_DATA_KEYS = {"repeats": "fold", "delimiter": ",", "encoding": "utf-8"}
_NEVER = object()
_OF_TRAINERS = {"trainer", "ppo", "critic", "reference"}


def fingerprints_of(
    settings: Settings, stages: Sequence[Stage], learn: Mapping[str, Algorithm]
) -> dict[str, dict[str, Any]]:
    """What each stage's result depends on beside its inputs. Throughput settings are left out."""
    partition = next(stage for stage in stages if isinstance(stage, PartitionStage))
    tokens = {m: algorithm.tokens for m, algorithm in learn.items()}
    dump = settings.model_dump(mode="json")
    rollout = {k: v for k, v in dump["rollout"].items() if k not in {"max_in_flight", "players"}}
    fingerprints: dict[str, dict[str, Any]] = {
        "sample": {
            "data": _without_defaults(dump["data"]),
            "seed": settings.run.seed,
            "shard": settings.rollout.tasks_per_shard,
        },
        "rollout": {**team_fingerprint(settings), "rollout": rollout, "seed": settings.run.seed},
        **pure_fingerprints(settings, partition, tokens),
    }
    return fingerprints | trainer_fingerprints(settings, stages, learn)


def _without_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """[data] without the keys that came later and are as they were before: older runs go on."""
    return {key: value for key, value in data.items() if value != _LATER_DATA_KEYS.get(key, _NEVER)}


def trainer_fingerprints(
    settings: Settings, stages: Sequence[Stage], learn: Mapping[str, Algorithm]
) -> dict[str, dict[str, Any]]:
    """Those of the stages that use a trainer: scores and updates."""
    fingerprints: dict[str, dict[str, Any]] = {}
    for stage in stages:
        kind, _, model_id = stage.name.partition("/")
        if kind not in ("score", "update"):
            continue
        algorithm = learn[model_id]
        fingerprints[stage.name] = {
            "trainer": settings.models[model_id].trainer.model_dump(mode="json"),
            "weights": _weights_of(settings.models[model_id]),
            "needs": sorted(algorithm.needs),
            "critic": asdict(algorithm.critic) if algorithm.critic else None,
            "reference": asdict(algorithm.reference) if algorithm.reference else None,
        }
        if kind == "update":
            fingerprints[stage.name] |= {
                "ppo": settings.ppo_of(model_id).model_dump(mode="json"),
                "loss": asdict(algorithm.loss),
                "loss_source": source_hash(algorithm.loss.name),
            }
    return fingerprints


def pure_fingerprints(
    settings: Settings, partition: PartitionStage, tokens: Mapping[str, TokenSpec]
) -> dict[str, dict[str, Any]]:
    """Those of the stages that use no engine and no trainer; `tokens` by model."""
    dump = settings.model_dump(mode="json")
    return {
        "reward": {
            **rewards_fingerprint(settings.rewards),
            "format_weights": {r: s["format_weight"] for r, s in dump["roles"].items()},
            "truncated": settings.credit.truncated,
        },
        "credit": {
            "credit": {**dump["credit"], "use": settings.credit_method},
            "source": source_hash(settings.credit_method),
        },
        "partition": {
            "models": {spec.model_id: asdict(spec) for spec in partition.models},
            "frozen_roles": sorted(partition.frozen_roles),
        },
        "advantage": {model_id: asdict(spec) for model_id, spec in tokens.items()},
    }


def team_fingerprint(settings: Settings) -> dict[str, Any]:
    """What the plays of a team depend on, beside their tasks, seeds and limits: how a team is trained and
    how fast it is asked is left out."""
    dump = settings.model_dump(mode="json")
    return {
        "workflow": dump["workflow"],
        "workflow_source": source_hash(settings.workflow.use),
        "roles": {r: _without(s, _OF_TRAINED_ROLES) for r, s in dump["roles"].items()},
        "models": {m: _without_pace(_without(s, _OF_TRAINERS)) for m, s in dump["models"].items()},
        **_said_by_others(settings),
    }


def rewards_fingerprint(sections: Sequence[RewardSection]) -> dict[str, Any]:
    """What the numbers of these rewards depend on beside the plays."""
    return {
        "rewards": [section.model_dump(mode="json") for section in sections],
        "sources": {section.use: source_hash(section.use) for section in sections},
    }


def _said_by_others(settings: Settings) -> dict[str, Any]:
    """By model, a hash of what its engine says instead of weights: a script or a file; {} where none does."""
    hashes: dict[str, str] = {}
    for model_id, section in settings.models.items():
        spoken = engine_class(section.engine).said_by(section.engine_options)
        if spoken is not None:
            hashes[model_id] = spoken
    return {"said_by_others": hashes} if hashes else {}


def _without(section: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if k not in keys}


def _without_pace(section: dict[str, Any]) -> dict[str, Any]:
    """A model's settings without how fast its engine is asked, and with which key."""
    pace = engine_class(section["engine"]).pace_options
    return {**section, "engine_options": _without(section["engine_options"], pace)}


def identity_of(settings: Settings, tasks: LoadedTasks) -> dict[str, Any]:
    """What a run is: another workflow, model, model map, data or seed is another run."""
    return {
        "workflow": settings.workflow.model_dump(mode="json"),
        "models": {m: _weights_of(s) for m, s in settings.models.items()},
        "roles": {r: s.model for r, s in settings.roles.items()},
        "data": {"path": settings.data.path, "split": settings.data.split, "rows": tasks.fingerprint},
        "tasks_per_iteration": settings.data.tasks_per_iteration,
        "seed": settings.run.seed,
    }


def _weights_of(section: ModelSection) -> str | dict[str, Any]:
    if name := engine_class(section.engine).weights_name(section.engine_options):
        return name
    if section.adapter is not None:
        return {"checkpoint": section.checkpoint, "adapter": section.adapter.model_dump(mode="json")}
    return section.checkpoint
