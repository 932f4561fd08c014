"""How many numbers the models of a team hold, and how many of them its optimizers move."""

from __future__ import annotations

from pipeline.plan.assemble import Plan


def parameters_of(plan: Plan) -> dict[str, int]:
    """How many numbers a team has: `trained`, which optimizers move, and `held`, which its models have.

    A base that adapters share counts once. Critics, references, frozen copies and models behind an API do
    not count.
    """
    from stages.weights.adapters import adapter_parameters

    trained, bases, adapters = 0, {}, 0
    for model in plan.models.models.values():
        info = plan.checkpoints.get(model.model_id)
        count = bases[model.base_id] = info.parameters if info else 0
        if model.model_id not in plan.trainer_specs:
            continue
        spec = plan.trainer_specs[model.model_id]
        if spec.adapter is not None:
            where = f"models.{model.model_id}.adapter.targets"
            count = adapter_parameters(spec.adapter, spec.checkpoint, where)
            adapters += count
        trained += count
    return {"trained": trained, "held": sum(bases.values()) + adapters}
