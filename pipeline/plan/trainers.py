"""From settings to what trains each model, and the stages that do it; needs no data, engine or tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.plan.algorithm import Algorithm, algorithms
from pipeline.settings.schema import Settings
from pipeline.settings.training import OPTIMIZER_KEYS
from rewards.base import Credit
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.engines.base import EngineSpec
from stages.score import ScoreStage
from stages.training.spec import TrainerSpec
from stages.update import UpdateStage
from stages.weights.adapters import AdapterSpec, adapter_parameters
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from workflows.models import Model, ModelMap
from workflows.script import AnyWorkflow


@dataclass(frozen=True, slots=True)
class Trainers:
    """Everything that updates need, checked: a plan of which there are only the trainers."""

    settings: Settings
    models: ModelMap
    algorithms: Mapping[str, Algorithm]  # by id of the models that are trained, like the next
    trainer_specs: Mapping[str, TrainerSpec]
    checkpoints: Mapping[str, CheckpointInfo]  # of their initial weights

    @property
    def engine_specs(self) -> Mapping[str, EngineSpec]:
        """None: what is trained on has been sampled."""
        return {}


def trainers_of(settings: Settings, workflow: AnyWorkflow, models: ModelMap, method: Credit) -> Trainers:
    """The trainers of these settings, in which every role's model is filled in.

    Raises:
        UsageError: settings that contradict each other, or initial weights that are not there.
    """
    learn = algorithms(settings, method, response_limits(settings, workflow))
    specs, infos = {}, {}
    for model in models.trainable:
        folder = resolve_checkpoint(settings.models[model.model_id].checkpoint)
        infos[model.model_id] = describe_checkpoint(folder)
        adapter = adapter_of(model, folder) if model.adapter is not None else None
        specs[model.model_id] = trainer_spec(settings, model, folder, adapter, learn[model.model_id])
    return Trainers(settings, models, learn, specs, infos)


def trainer_spec(
    settings: Settings, model: Model, folder: str, adapter: AdapterSpec | None, algorithm: Algorithm
) -> TrainerSpec:
    """What one model's trainer is made from; `folder` has its initial weights, or its adapter's base."""
    trainer, ppo = settings.models[model.model_id].trainer, settings.ppo_of(model.model_id)
    return TrainerSpec(
        model_id=model.model_id,
        base_id=model.base_id,
        checkpoint=folder,
        adapter=adapter,
        **(trainer.model_dump() | {"precision": trainer_precision(trainer.precision, trainer.num_gpus)}),
        **ppo.model_dump(include=set(OPTIMIZER_KEYS)),
        loss=algorithm.loss,
        schedule=algorithm.schedule,
        critic=algorithm.critic,
        reference=algorithm.reference,
        seed=settings.run.seed,
    )


def adapter_of(model: Model, folder: str) -> AdapterSpec:
    """How a model's adapter is made, checked against its base."""
    adapter = AdapterSpec(**(model.adapter or {}))
    adapter_parameters(adapter, folder, f"models.{model.model_id}.adapter.targets")
    return adapter


def response_limits(settings: Settings, workflow: AnyWorkflow) -> dict[str, int]:
    """By role: the most tokens that an answer may have."""
    return {
        role: section.max_response_tokens or workflow.roles[role].max_response_tokens
        for role, section in settings.roles.items()
    }


def update_stages(
    models: ModelMap, learn: Mapping[str, Algorithm], *, off_policy: bool = False
) -> list[Stage]:
    """Scores where they are needed, token advantages where they differ from the turns', and the updates.

    `off_policy`: for rows that other weights than the trainers' sampled.
    """
    trained = [m.model_id for m in models.trainable]
    scores = [ScoreStage(m, learn[m].needs, off_policy) for m in trained if learn[m].needs]
    tokens = tuple(learn[m].tokens for m in trained)
    advantage = [AdvantageStage(tokens)] if any(t.does_something for t in tokens) else []
    updates = [
        UpdateStage(
            m, advantages=bool(advantage), scores=bool(learn[m.model_id].needs), off_policy=off_policy
        )
        for m in models.trainable
    ]
    return [*scores, *advantage, *updates]
