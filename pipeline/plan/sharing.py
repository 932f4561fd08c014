"""From [roles], [models] and [sharing] to the model map: the only place that knows the shorthands."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.plan.bases import adapters_for_roles, base_id_of, only_bases, with_bases
from pipeline.settings.schema import ModelSection, RoleSection, Settings
from workflows.errors import UsageError, did_you_mean
from workflows.models import Model, ModelMap


def fill_sharing(settings: Settings, roles: list[str]) -> Settings:
    """`settings` with the `model` of every role filled in, and [sharing] resolved into [models]."""
    if unknown := sorted(set(settings.roles) - set(roles)):
        raise UsageError(
            f"[roles.{unknown[0]}]: workflow {settings.workflow.use!r} has no such role"
            f"{did_you_mean(unknown[0], roles)}; its roles: {', '.join(roles)}"
        )
    if settings.sharing is None:
        of_role = _declared(settings, roles)
        return _with_roles(settings, of_role, with_bases(settings.models, set(of_role.values())))
    if len(settings.models) != 1:
        raise UsageError(
            f"[sharing] needs exactly one [models.<id>] as the pattern of all models, got "
            f"{', '.join(settings.models)}; without [sharing], give each role its model"
        )
    if named := [r for r, s in settings.roles.items() if s.model is not None]:
        raise UsageError(f"[sharing] says which model each role has; remove model from [roles.{named[0]}]")
    pattern_id, pattern = next(iter(settings.models.items()))
    of_role = _shared_out(settings, roles, pattern_id)
    spoken = dict.fromkeys(of_role[r] for r in roles)
    if settings.sharing.regime == "adapters":
        models = adapters_for_roles(pattern_id, pattern, spoken)
    else:
        models = dict.fromkeys(spoken, pattern)
    return _with_roles(settings, of_role, with_bases(models, spoken))


def _declared(settings: Settings, roles: list[str]) -> dict[str, str]:
    of_role = {}
    only = next(iter(settings.models)) if len(settings.models) == 1 else None
    for role in roles:
        section = settings.roles.get(role)
        model = (section.model if section else None) or only
        if model is None:
            raise UsageError(
                f"role {role!r} has no model and there are {len(settings.models)} to choose from; add "
                f'[roles.{role}] model = "{next(iter(settings.models), "team")}", or use [sharing]'
            )
        of_role[role] = model
    return of_role


def _shared_out(settings: Settings, roles: list[str], pattern_id: str) -> dict[str, str]:
    sharing = settings.sharing
    assert sharing is not None
    if (sharing.regime is None) == (not sharing.groups):
        raise UsageError(
            '[sharing]: give either regime = "full", "separate" or "adapters", or groups = {name = [roles]}'
        )
    if sharing.regime == "full":
        return dict.fromkeys(roles, pattern_id)
    if sharing.regime in ("separate", "adapters"):
        return {role: role for role in roles}
    of_role: dict[str, str] = {}
    for group, members in sharing.groups.items():
        for role in members:
            if role not in roles:
                raise UsageError(
                    f"[sharing] groups.{group}: no role {role!r}{did_you_mean(role, roles)}; "
                    f"roles: {', '.join(roles)}"
                )
            if role in of_role:
                raise UsageError(f"[sharing] role {role!r} is in groups {of_role[role]!r} and {group!r}")
            of_role[role] = group
    if left := [r for r in roles if r not in of_role]:
        raise UsageError(f"[sharing] groups leave out role {left[0]!r}; put it into a group")
    return of_role


def _with_roles(
    settings: Settings, of_role: Mapping[str, str], models: Mapping[str, ModelSection]
) -> Settings:
    sections = {
        role: settings.roles.get(role, RoleSection()).model_copy(update={"model": model})
        for role, model in of_role.items()
    }
    return settings.model_copy(update={"roles": sections, "models": dict(models), "sharing": None})


def model_map(settings: Settings) -> ModelMap:
    roles = {role: str(s.model) for role, s in settings.roles.items()}
    bases = only_bases(settings.models, roles.values())
    models = {
        model_id: Model(
            model_id,
            base_id=base_id_of(model_id, m),
            checkpoint=m.checkpoint,
            trainable=m.train,
            adapter=m.adapter.model_dump() if m.adapter else None,
        )
        for model_id, m in settings.models.items()
        if model_id not in bases
    }
    mapped = ModelMap(models, roles)
    if not mapped.trainable:
        raise UsageError("every model has train = false, so there is nothing to train; set one to true")
    return mapped
