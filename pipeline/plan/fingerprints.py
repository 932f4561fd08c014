"""What a run is, and what each stage's result depends on beside its inputs.

A finished stage is never run again: these are what is compared before it is loaded instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from pipeline.plan.algorithm import Algorithm, truncated_rule
from pipeline.plan.channels import channels_fingerprint, replays_fingerprint
from pipeline.plan.resolve import ModelPlan, Resolved
from pipeline.plan.rewards import reward_model_hashes
from pipeline.plan.stopping import holds_stops, stop_fingerprints
from pipeline.plan.trial import trial_fingerprint, tried
from pipeline.settings.schema import ModelSection, RewardSection
from pipeline.settings.training import MeasureSection
from rewards.base import CreditHooks
from rewards.loading import load_credit
from stages.base import Stage
from stages.engines.kinds import engine_class
from stages.partition import PartitionStage
from stages.token_advantages.spec import TokenSpec
from workflows.data.tasks import LoadedTasks
from workflows.hooks import hooks_of
from workflows.plugins import source_hash

_OF_PACE = {"max_in_flight", "players"}
_OF_TRAINED_ROLES = {"format_weight", "ppo", "frozen"}
_OF_TRAINERS = {"trainer", "ppo", "critic", "reference", "trust_region"}


def fingerprints_of(
    resolved: Resolved, stages: Sequence[Stage], by_model: Mapping[str, Algorithm]
) -> dict[str, dict[str, Any]]:
    """By stage name, what its result depends on beside its inputs. Throughput settings are left out.

    Args:
        resolved: the settings and the workflow.
        stages: of one iteration.
        by_model: the algorithms of the models that are trained, by id.
    """
    partition = next(stage for stage in stages if isinstance(stage, PartitionStage))
    tokens = {model_id: algorithm.tokens for model_id, algorithm in by_model.items()}
    rollout = _without(resolved.rollout.fingerprint(), _OF_PACE)
    play = {**team_fingerprint(resolved), "rollout": rollout, "seed": resolved.run.seed}
    play |= {"hold_stops": True} if holds_stops(resolved.stopping) else {}
    pure = pure_fingerprints(resolved, partition, tokens)
    fingerprints: dict[str, dict[str, Any]] = {
        "sample": {
            "data": resolved.data.fingerprint(),
            "seed": resolved.run.seed,
            "shard": resolved.rollout.tasks_per_shard,
        },
        "rollout": play,
        **({"greedy": play} if any(stage.name == "greedy" for stage in stages) else {}),
        **({"shift": {}} if any(stage.name == "shift" for stage in stages) else {}),
        **({"counterfactual": replays_fingerprint(resolved, play)} if resolved.counterfactuals.ops else {}),
        **pure,
        **stop_fingerprints(resolved, play, pure["reward"]),
    }
    of_trainers = trainer_fingerprints(resolved.model_plans, stages, by_model, resolved.measure)
    for model in tried(resolved):
        of_trainers[f"update/{model.model_id}"]["trial"] = trial_fingerprint(resolved, play, pure["reward"])
    return fingerprints | of_trainers


def trainer_fingerprints(
    models: Mapping[str, ModelPlan],
    stages: Sequence[Stage],
    by_model: Mapping[str, Algorithm],
    measure: MeasureSection,
) -> dict[str, dict[str, Any]]:
    """The fingerprints of the stages that use a trainer: scores and updates. See `fingerprints_of`."""
    fingerprints: dict[str, dict[str, Any]] = {}
    for stage in stages:
        kind, _, model_id = stage.name.partition("/")
        if kind not in ("score", "update"):
            continue
        model, algorithm = models[model_id], by_model[model_id]
        fingerprints[stage.name] = {
            "trainer": model.section.trainer.fingerprint(),
            "weights": _weights_of(model.section),
            "needs": sorted(algorithm.needs),
            "critic": _plain(algorithm.critic) if algorithm.critic else None,
            "reference": asdict(algorithm.reference) if algorithm.reference else None,
        }
        if kind == "update":
            fingerprints[stage.name] |= {
                "ppo": model.ppo.fingerprint(),
                "loss": _plain(algorithm.loss),
                "loss_source": source_hash(algorithm.loss.name),
            }
            if model.trust.radius is not None:
                fingerprints[stage.name]["trust_region"] = model.trust.fingerprint()
            if measure.gradients != "off":
                fingerprints[stage.name]["measure"] = measure.fingerprint()
    return fingerprints


def pure_fingerprints(
    resolved: Resolved, partition: PartitionStage, tokens: Mapping[str, TokenSpec]
) -> dict[str, dict[str, Any]]:
    """The fingerprints of the stages that use no engine and no trainer; `tokens` by model."""
    reward = {
        **rewards_fingerprint(resolved.rewards, resolved.run.root),
        "format_weights": resolved.format_weights,
        "truncated": truncated_rule(resolved.credit),
    }
    method = load_credit(str(resolved.credit.use), resolved.credit.options)
    needs_greedy = hooks_of(method, CreditHooks).needs_greedy
    return {
        "reward": reward,
        **({"greedy_reward": reward} if needs_greedy else {}),
        "credit": {
            "credit": resolved.credit.fingerprint(),
            "source": source_hash(str(resolved.credit.use)),
            **channels_fingerprint(resolved),
        },
        **(
            {"counterfactual_reward": reward, "messages": {"cheap": resolved.counterfactuals.cheap}}
            if resolved.counterfactuals.ops
            else {}
        ),
        "partition": {
            "models": {spec.model_id: spec.fingerprint() for spec in partition.models},
            "frozen_roles": sorted(partition.frozen_roles),
            **({"decided_roles": sorted(partition.decided_roles)} if partition.decided_roles else {}),
        },
        "advantage": {model_id: _plain(spec) for model_id, spec in tokens.items()},
    }


def team_fingerprint(resolved: Resolved) -> dict[str, Any]:
    """What the plays of a team depend on, beside their tasks, seeds and limits: how a team is trained and
    how fast its engines are asked is left out."""
    roles = {name: role.section.fingerprint() for name, role in resolved.roles.items()}
    models = {name: section.fingerprint() for name, section in resolved.model_sections.items()}
    return {
        "workflow": resolved.workflow_section.fingerprint(),
        "workflow_source": source_hash(resolved.workflow_section.use),
        "roles": {name: _without(dump, _OF_TRAINED_ROLES) for name, dump in roles.items()},
        "models": {name: _without_pace(_without(dump, _OF_TRAINERS)) for name, dump in models.items()},
        **_said_by_others(resolved.model_sections),
    }


def rewards_fingerprint(sections: Sequence[RewardSection], root: str) -> dict[str, Any]:
    """What the numbers of these rewards depend on beside the plays; `root` is that of runs."""
    learned = reward_model_hashes(sections, root)
    return {
        "rewards": [section.fingerprint() for section in sections],
        "sources": {section.use: source_hash(section.use) for section in sections},
        **({"reward_models": learned} if learned else {}),
    }


def _said_by_others(sections: Mapping[str, ModelSection]) -> dict[str, Any]:
    """By model, a hash of what its engine says instead of weights: a script or a file; {} where none does."""
    hashes: dict[str, str] = {}
    for model_id, section in sections.items():
        spoken = engine_class(section.engine).said_by(section.engine_options)
        if spoken is not None:
            hashes[model_id] = spoken
    return {"said_by_others": hashes} if hashes else {}


def _plain(spec: Any) -> dict[str, Any]:
    """A specification as plain values, without fields of its `later` that have their default."""
    later: frozenset[str] = getattr(spec, "later", frozenset())
    new = {f.name for f in fields(spec) if f.name in later and getattr(spec, f.name) == f.default}
    return _without(asdict(spec), new)


def _without(section: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if k not in keys}


def _without_pace(section: dict[str, Any]) -> dict[str, Any]:
    """A model's settings without how fast its engine is asked, by how many, and with which key."""
    pace = engine_class(section["engine"]).pace_options
    section = _without(section, {"replicas"})
    return {**section, "engine_options": _without(section["engine_options"], pace)}


def identity_of(resolved: Resolved, tasks: LoadedTasks) -> dict[str, Any]:
    """What a run is: another workflow, model, model map, data or seed is another run."""
    data = resolved.data
    return {
        "workflow": resolved.workflow_section.fingerprint(),
        "models": {name: _weights_of(section) for name, section in resolved.model_sections.items()},
        "roles": {name: role.model_id for name, role in resolved.roles.items()},
        "data": {"path": data.path, "split": data.split, "rows": tasks.fingerprint},
        "tasks_per_iteration": data.tasks_per_iteration,
        "seed": resolved.run.seed,
    }


def _weights_of(section: ModelSection) -> str | dict[str, Any]:
    if name := engine_class(section.engine).weights_name(section.engine_options):
        return name
    if section.adapter is not None:
        return {"checkpoint": section.checkpoint, "adapter": section.adapter.fingerprint()}
    return section.checkpoint
