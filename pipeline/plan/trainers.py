"""What trains each model, and the stages that do it; needs no data, engine or tool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from pipeline.plan.algorithm import Algorithm, algorithms
from pipeline.plan.channels import channel_mix, has_spans
from pipeline.plan.resolve import ModelPlan, Resolved
from pipeline.plan.stopping import stop_losses
from pipeline.settings.training import OPTIMIZER_KEYS, PpoSection, TrainerSection, TrustSection
from rewards.base import Credit
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.engines.base import EngineSpec
from stages.score import ScoreStage
from stages.shift import ShiftStage
from stages.training.gradients.spec import MeasureSpec, ShapingSpec
from stages.training.loss.spec import CriticSpec, LossSpec, ReferenceSpec, ScheduleSpec
from stages.training.spec import TrainerSpec
from stages.training.trust.spec import TrustSpec
from stages.trial import Trial
from stages.update import UpdateStage
from stages.weights.adapters import AdapterSpec, adapter_parameters
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError
from workflows.models import Model, ModelMap
from workflows.plugins import source_hash


@dataclass(frozen=True, slots=True)
class Trainers:
    """The trainers of a plan alone, checked: all that updates of stored rows need."""

    resolved: Resolved
    algorithms: Mapping[str, Algorithm]  # by id of the models that are trained, like the next
    trainer_specs: Mapping[str, TrainerSpec]
    checkpoints: Mapping[str, CheckpointInfo]  # of their initial weights

    @property
    def models(self) -> ModelMap:
        return self.resolved.models

    @property
    def engine_specs(self) -> Mapping[str, EngineSpec]:
        """No engine: the rows to train on are stored already."""
        return {}


def trainers_of(resolved: Resolved, method: Credit) -> Trainers:
    """The trainers of all models that are trained; `method` is the credit method.

    Raises:
        UsageError: settings that contradict each other, or initial weights that are not there.
    """
    by_model = algorithms_of(resolved, method)
    specs, infos = {}, {}
    for plan in resolved.trained:
        folder = resolve_checkpoint(plan.section.checkpoint)
        infos[plan.model_id] = describe_checkpoint(folder)
        adapter = adapter_of(plan.model, folder) if plan.model.adapter is not None else None
        algorithm = by_model[plan.model_id]
        specs[plan.model_id] = trainer_spec(plan, folder, adapter, algorithm, resolved)
    return Trainers(resolved, by_model, specs, infos)


def algorithms_of(resolved: Resolved, method: Credit) -> dict[str, Algorithm]:
    """How each trained model learns; `method` is the credit method.

    Raises:
        UsageError: settings that contradict each other.
    """
    return algorithms(
        resolved.trained,
        resolved.advantage,
        str(resolved.credit.use),
        method,
        resolved.measure,
        stop_losses(resolved),
        spans=has_spans(channel_mix(resolved)),
    )


def trainer_spec(
    plan: ModelPlan, folder: str, adapter: AdapterSpec | None, algorithm: Algorithm, resolved: Resolved
) -> TrainerSpec:
    """What one model's trainer is made from; `folder` has its initial weights, or its adapter's base."""
    trainer = plan.section.trainer
    return TrainerSpec(
        model_id=plan.model_id,
        base_id=plan.model.base_id,
        checkpoint=folder,
        adapter=adapter,
        **(trainer.model_dump() | {"precision": trainer_precision(trainer.precision, trainer.num_gpus)}),
        **plan.ppo.model_dump(include=set(OPTIMIZER_KEYS)),
        loss=algorithm.loss,
        schedule=algorithm.schedule,
        critic=algorithm.critic,
        reference=algorithm.reference,
        seed=resolved.run.seed,
        measure=MeasureSpec(**resolved.measure.model_dump()),
        shaping=shaping_of(plan.ppo),
        trust=trust_of(plan.trust),
        init_timeout_seconds=resolved.cluster.trainer_start_seconds,
        update_timeout_seconds=resolved.cluster.update_seconds,
    )


def shaping_of(ppo: PpoSection) -> ShapingSpec:
    """What [ppo] changes of a gradient before it is clipped."""
    return ShapingSpec(**ppo.model_dump(include={field.name for field in fields(ShapingSpec)}))


def trust_of(section: TrustSection) -> TrustSpec | None:
    """The trust region that [trust_region] says; None without a radius."""
    return None if section.radius is None else TrustSpec(**section.model_dump())


def adapter_of(model: Model, folder: str) -> AdapterSpec:
    """How a model's adapter is made, checked against its base."""
    adapter = AdapterSpec(**(model.adapter or {}))
    adapter_parameters(adapter, folder, f"models.{model.model_id}.adapter.targets")
    return adapter


def update_stages(
    models: ModelMap,
    by_model: Mapping[str, Algorithm],
    *,
    off_policy: bool = False,
    by_role: bool = False,
    within: Collection[str] = (),
    ratios: bool = False,
    trials: Mapping[str, Trial] | None = None,
) -> list[Stage]:
    """Scores where they are needed, token advantages where they differ from the turns', and the updates.

    Args:
        models: the model map.
        by_model: the algorithms of the models that are trained, by id.
        off_policy: other weights than the trainers' sampled the rows.
        by_role: the updates measure gradients by role.
        within: ids of the models that have a trust region.
        ratios: they measure every row, and the iteration tells shifts.
        trials: what candidates of models have to stand, by id.
    """
    trained = [m.model_id for m in models.trainable]
    scores = [ScoreStage(m, by_model[m].needs, off_policy) for m in trained if by_model[m].needs]
    tokens = tuple(by_model[m].tokens for m in trained)
    advantage = [AdvantageStage(tokens)] if any(t.does_something for t in tokens) else []
    updates = [
        UpdateStage(
            m,
            advantages=bool(advantage),
            scores=bool(by_model[m.model_id].needs),
            off_policy=off_policy,
            kl_scale=by_model[m.model_id].scales_loss,
            by_role=by_role,
            trust=m.model_id in within,
            ratios=ratios,
            stops=bool(by_model[m.model_id].loss.stop_loss),
            trial=(trials or {}).get(m.model_id),
        )
        for m in models.trainable
    ]
    shift = [ShiftStage(tuple(trained), tuple(trained))] if ratios else []
    return [*scores, *advantage, *updates, *shift]


_OF_THE_MACHINE: Final = frozenset({"num_gpus"})  # an update is made again with what there is today


def spec_of(fingerprint: Mapping[str, Any], today: TrainerSpec) -> TrainerSpec:
    """The trainer that an update with this fingerprint was made by (`trainer_fingerprints`).

    Args:
        fingerprint: of a finished update.
        today: the trainer of that model with the settings of now.

    Raises:
        UsageError: the fingerprint has settings that this version does not know.
    """
    if not fingerprint:
        return today
    try:
        trainer = TrainerSection.model_validate(fingerprint["trainer"])
        ppo = PpoSection.model_validate(fingerprint["ppo"])
        kinds = {"loss": LossSpec, "critic": CriticSpec | None, "reference": ReferenceSpec | None}
        parts = {name: _adapter(kind).validate_python(fingerprint[name]) for name, kind in kinds.items()}
        parts["trust"] = trust_of(TrustSection.model_validate(fingerprint.get("trust_region", {})))
        parts["measure"] = _adapter(MeasureSpec).validate_python(fingerprint.get("measure", {}))
    except (KeyError, ValidationError) as error:
        wrong = (
            error.errors()[0] if isinstance(error, ValidationError) else {"loc": error.args, "msg": "missing"}
        )
        raise UsageError(
            f"an update of model {today.model_id!r} has to be made again, and the settings that it was made "
            f"with can't be read by this version: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}; go on "
            "with the version of Cadre that made it"
        ) from None
    precision = trainer_precision(trainer.precision, today.num_gpus)
    changes: dict[str, Any] = trainer.model_dump(exclude=set(_OF_THE_MACHINE)) | {"precision": precision}
    schedule = ScheduleSpec(ppo.schedule, ppo.warmup_updates, ppo.total_updates, ppo.final_share)
    changes |= ppo.model_dump(include=set(OPTIMIZER_KEYS)) | parts | {"schedule": schedule}
    changes["shaping"] = shaping_of(ppo)
    return replace(today, **changes)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def changed_loss(fingerprint: Mapping[str, Any]) -> str | None:
    """The loss of an update with this fingerprint, where its source is another one today."""
    name = fingerprint.get("loss", {}).get("name")
    return name if name and fingerprint.get("loss_source") != source_hash(name) else None
