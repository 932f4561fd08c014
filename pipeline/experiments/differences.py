"""The settings in which several runs differ, without the ones that they share.

A sharing regime changes whole sections ([models], the model of each role). Here it is one line, and the
settings of models are compared role by role, so that equal ones do not show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.settings.names import without_password
from pipeline.store.history import History

SEED: Final = "run.seed"
SHARING: Final = "sharing"
_NAMES: Final = ("run.name", "run.root", "tracking.", "cluster.")  # where a run lies, not what it does
_ABSENT: Final = "–"

Differences = dict[str, list[str]]
"""By setting: its value in each run, as text, in the order of the runs."""


def differences_of(histories: Sequence[History]) -> Differences:
    """The settings that are not the same in all of the runs."""
    flat = [_flat(_without_models(h.kept)) | {SHARING: _sharing(h)} for h in histories]
    differing = _different(flat)
    return dict(sorted((differing | _model_differences(histories)).items(), key=_sharing_first))


def without_seed(differences: Differences) -> Differences:
    return {key: values for key, values in differences.items() if key != SEED}


def _sharing_first(item: tuple[str, list[str]]) -> tuple[bool, str]:
    return (item[0] != SHARING, item[0])


def _different(flat: Sequence[Mapping[str, str]]) -> Differences:
    keys = {key: None for one in flat for key in one if not key.startswith(_NAMES)}
    rows = {key: [one.get(key, _ABSENT) for one in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _model_differences(histories: Sequence[History]) -> Differences:
    """Settings of models by role: in one line where in every run all roles have the same."""
    by_run = [{role: _flat(m) for role, m in _models_by_role(h.kept).items()} for h in histories]
    keys = {key: None for roles in by_run for model in roles.values() for key in model}
    differences: Differences = {}
    for key in keys:
        if all(len({m.get(key, _ABSENT) for m in roles.values()}) <= 1 for roles in by_run):
            flat = [{f"models.{key}": next(iter(r.values())).get(key, _ABSENT)} if r else {} for r in by_run]
        else:
            flat = [{f"models({r}).{key}": m.get(key, _ABSENT) for r, m in roles.items()} for roles in by_run]
        differences |= _different(flat)
    return differences


def _models_by_role(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    models = settings.get("models", {})
    roles = {r: s.get("model") for r, s in settings.get("roles", {}).items()}
    return {
        role: {k: v for k, v in models.get(model, {}).items() if k != "base"} for role, model in roles.items()
    }


def _without_models(settings: Mapping[str, Any]) -> dict[str, Any]:
    roles = settings.get("roles", {})
    plain_roles = {r: {k: v for k, v in section.items() if k != "model"} for r, section in roles.items()}
    return {k: v for k, v in settings.items() if k not in ("models", "sharing")} | {"roles": plain_roles}


def _sharing(history: History) -> str:
    """The regime; of groups also who is with whom."""
    if history.regime != "groups":
        return history.regime
    members: dict[str, list[str]] = {}
    for role, section in sorted(history.kept.get("roles", {}).items()):
        members.setdefault(str(section.get("model")), []).append(role)
    groups = [f"{model}={'+'.join(roles)}" for model, roles in sorted(members.items())]
    return f"groups({', '.join(groups)})"


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Leaves by dotted key, as text; passwords in URLs are left out."""
    items: Sequence[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(v, Mapping) for v in value):
        items = list(enumerate(value))
    if items:
        return {k: v for key, v in items for k, v in _flat(v, f"{path}.{key}" if path else str(key)).items()}
    if isinstance(value, Mapping):
        return {}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return {path: without_password(text)}
