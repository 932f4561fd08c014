"""From [roles], [models] and [sharing] to the model map: the only place that knows the shorthands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.plan.bases import adapters_for_roles, base_id_of, only_bases, with_bases
from pipeline.settings.schema import ModelSection, RoleSection, SharingSection
from workflows.errors import UsageError, did_you_mean
from workflows.models import Model, ModelMap


def shared(
    workflow: str,
    sharing: SharingSection | None,
    models: Mapping[str, ModelSection],
    roles: Mapping[str, RoleSection],
    names: Sequence[str],
) -> tuple[dict[str, RoleSection], dict[str, ModelSection]]:
    """The section of every role with its `model`, and the models that [sharing] makes of the one declared.

    Args:
        workflow: what messages call the workflow.
        sharing: the section, None where each role names its model or there is only one.
        models: the sections by model id.
        roles: the sections by role; roles without one get the defaults.
        names: the workflow's roles.

    Raises:
        UsageError: a role that the workflow does not have, a role without a model, or models that do not
            fit together.
    """
    if unknown := sorted(set(roles) - set(names)):
        raise UsageError(
            f"[roles.{unknown[0]}]: workflow {workflow!r} has no such role"
            f"{did_you_mean(unknown[0], names)}; its roles: {', '.join(names)}"
        )
    if sharing is None:
        of_role = _declared(models, roles, names)
        return _with_models(roles, of_role), with_bases(models, set(of_role.values()))
    if len(models) != 1:
        raise UsageError(
            f"[sharing] needs exactly one [models.<id>] as the pattern of all models, got "
            f"{', '.join(models)}; without [sharing], give each role its model"
        )
    if named := [role for role, section in roles.items() if section.model is not None]:
        raise UsageError(f"[sharing] says which model each role has; remove model from [roles.{named[0]}]")
    pattern_id, pattern = next(iter(models.items()))
    of_role = _shared_out(sharing, names, pattern_id)
    spoken = dict.fromkeys(of_role[role] for role in names)
    if sharing.regime == "adapters":
        made = adapters_for_roles(pattern_id, pattern, spoken)
    else:
        made = dict.fromkeys(spoken, pattern)
    return _with_models(roles, of_role), with_bases(made, spoken)


def _declared(
    models: Mapping[str, ModelSection], roles: Mapping[str, RoleSection], names: Sequence[str]
) -> dict[str, str]:
    """The model of each role where [roles] says so or there is only one."""
    of_role = {}
    only = next(iter(models)) if len(models) == 1 else None
    for role in names:
        section = roles.get(role)
        model = (section.model if section else None) or only
        if model is None:
            raise UsageError(
                f"role {role!r} has no model and there are {len(models)} to choose from; add "
                f'[roles.{role}] model = "{next(iter(models), "team")}", or use [sharing]'
            )
        of_role[role] = model
    return of_role


def _shared_out(sharing: SharingSection, names: Sequence[str], pattern_id: str) -> dict[str, str]:
    """The model of each role as [sharing] says."""
    if (sharing.regime is None) == (not sharing.groups):
        raise UsageError(
            '[sharing]: give either regime = "full", "separate" or "adapters", or groups = {name = [roles]}'
        )
    if sharing.regime == "full":
        return dict.fromkeys(names, pattern_id)
    if sharing.regime in ("separate", "adapters"):
        return {role: role for role in names}
    of_role: dict[str, str] = {}
    for group, members in sharing.groups.items():
        for role in members:
            if role not in names:
                raise UsageError(
                    f"[sharing] groups.{group}: no role {role!r}{did_you_mean(role, names)}; "
                    f"roles: {', '.join(names)}"
                )
            if role in of_role:
                raise UsageError(
                    f"[sharing] role {role!r} is in groups {of_role[role]!r} and {group!r}, expected one "
                    "group for each role; take it out of one of them"
                )
            of_role[role] = group
    if left := [role for role in names if role not in of_role]:
        raise UsageError(f"[sharing] groups leave out role {left[0]!r}; put it into a group")
    return of_role


def _with_models(roles: Mapping[str, RoleSection], of_role: Mapping[str, str]) -> dict[str, RoleSection]:
    return {
        role: roles.get(role, RoleSection()).model_copy(update={"model": model})
        for role, model in of_role.items()
    }


def model_map(roles: Mapping[str, str], sections: Mapping[str, ModelSection]) -> ModelMap:
    """Which model speaks for each role, and what each is made from.

    Args:
        roles: the model id of each role.
        sections: the sections by model id, in which adapters have their base's keys.

    Raises:
        UsageError: a model that is not declared or that no role speaks with, or none that is trained.
    """
    bases = only_bases(sections, roles.values())
    models = {
        model_id: Model(
            model_id,
            base_id=base_id_of(model_id, section),
            checkpoint=section.checkpoint,
            trainable=section.train,
            adapter=section.adapter.model_dump() if section.adapter else None,
        )
        for model_id, section in sections.items()
        if model_id not in bases
    }
    mapped = ModelMap(models, roles)
    if not mapped.trainable:
        raise UsageError("every model has train = false, so there is nothing to train; set one to true")
    return mapped
