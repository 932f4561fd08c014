"""Which models share a base, and which settings an adapter inherits from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pipeline.settings.adapter import AdapterSection
from pipeline.settings.schema import ModelSection
from stages.engines.kinds import engine_class
from workflows.errors import UsageError, did_you_mean

OF_THE_BASE: Final = (
    "checkpoint",
    "engine",
    "engine_options",
    "max_model_len",
    "dtype",
    "kv_cache_gib",
    "gpu_memory_fraction",
    "num_gpus",
    "replicas",
    "max_batch_size",
    "trainer",
)
"""Keys of [models.<id>] that one engine and one set of trainer processes have for all adapters of a base."""
_OF_THE_TRAINED: Final = ("ppo", "critic", "reference")


def adapters_for_roles(
    pattern_id: str, pattern: ModelSection, roles: Collection[str]
) -> dict[str, ModelSection]:
    """[sharing] regime = "adapters": the pattern as the base, and on it an adapter for each role.

    Raises:
        UsageError: a role has the pattern's name, or the pattern is an adapter of another base.
    """
    if pattern_id in roles:
        raise UsageError(
            f'[sharing] regime = "adapters" names an adapter after each role, and their base '
            f"[models.{pattern_id}] has the name of a role; call it [models.base]"
        )
    if pattern.base is not None:
        raise UsageError(f"[sharing] makes [models.{pattern_id}] a base; remove its base = {pattern.base!r}")
    defaults = ModelSection()
    base = pattern.model_copy(
        update={"adapter": None, "train": False, **{k: getattr(defaults, k) for k in _OF_THE_TRAINED}}
    )
    adapter = pattern.model_copy(
        update={"base": pattern_id, "adapter": pattern.adapter or AdapterSection(), "train": True}
    )
    return {pattern_id: base} | dict.fromkeys(roles, adapter)


def with_bases(models: Mapping[str, ModelSection], spoken: Collection[str]) -> dict[str, ModelSection]:
    """`models` where each adapter has the keys that its base decides, and no base is trained.

    Args:
        models: the sections by model id.
        spoken: the ids of models that a role speaks with.

    Raises:
        UsageError: an adapter and its base do not fit together.
    """
    bases = {section.base for section in models.values() if section.base is not None}
    resolved = {}
    for model_id, section in models.items():
        if section.adapter is not None or section.base is not None:
            resolved[model_id] = _adapter(model_id, section, models)
        elif model_id in bases:
            resolved[model_id] = _base(model_id, section, model_id in spoken)
        else:
            resolved[model_id] = section
    return resolved


def base_id_of(model_id: str, section: ModelSection) -> str:
    """The id of the base whose engine serves a model: an adapter that names none is alone on its own."""
    return section.base or model_id


def only_bases(models: Mapping[str, ModelSection], spoken: Collection[str]) -> set[str]:
    """Ids of bases that no role speaks with, which are therefore not models of the team."""
    return {s.base for s in models.values() if s.base is not None} - set(spoken)


def _adapter(model_id: str, section: ModelSection, models: Mapping[str, ModelSection]) -> ModelSection:
    where, base_id = f"models.{model_id}", section.base
    if section.adapter is None:
        raise UsageError(
            f"{where} has base = {base_id!r} and no adapter: it would be the same model; add "
            f'adapter = {{ rank = 16 }}, or let its roles speak with model = "{base_id}"'
        )
    if not section.train:
        raise UsageError(
            f"{where} is an adapter with train = false, which would never differ from its base; let its "
            "roles speak with the base instead, or set train = true"
        )
    if base_id is None:
        _refuse_untrainable(where, section)
        return section
    if base_id not in models:
        raise UsageError(
            f"{where}.base is {base_id!r}, which is not declared{did_you_mean(base_id, models)}; declared: "
            f"{', '.join(m for m in models if m != model_id) or 'none'}; add [models.{base_id}]"
        )
    base = models[base_id]
    if base_id == model_id or base.base is not None or base.adapter is not None:
        raise UsageError(
            f"{where}.base is {base_id!r}, which is an adapter itself; an adapter stands on full weights: "
            "name a section without base and adapter"
        )
    _refuse_untrainable(f"models.{base_id}", base)
    for key in OF_THE_BASE:
        value, shared = getattr(section, key), getattr(base, key)
        if key in section.model_fields_set and value != shared:
            raise UsageError(
                f"{where}.{key} differs from that of its base {base_id!r}, and one engine and one trainer "
                f"process serve all adapters of a base; set it in [models.{base_id}] only"
            )
    return section.model_copy(update={key: getattr(base, key) for key in OF_THE_BASE})


def _base(model_id: str, section: ModelSection, is_spoken: bool) -> ModelSection:
    where = f"models.{model_id}"
    if is_spoken and section.train:
        raise UsageError(
            f"{where} is the base of adapters, so its weights can't move, and a role speaks with it; set "
            f"{where}.train = false, or give that role an adapter too"
        )
    defaults = ModelSection()
    for key in _OF_THE_TRAINED:
        if getattr(section, key) != getattr(defaults, key):
            raise UsageError(
                f"{where}.{key} has no effect: the weights of a base are not trained; set it in the sections "
                "of its adapters"
            )
    return section.model_copy(update={"train": False})


def _refuse_untrainable(where: str, section: ModelSection) -> None:
    if not engine_class(section.engine).trainable:
        raise UsageError(
            f'{where} has engine = "{section.engine}", whose models are not trained, so an adapter can\'t be '
            "put on one; give it a checkpoint and another engine"
        )
