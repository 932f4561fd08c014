"""The model map: which role speaks with which weights.

A sharing regime is data. One model for all roles, one for each, or groups of roles differ only in
this map; no other code asks which regime it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflows.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Model:
    """One set of weights that is asked and, if `trainable`, updated as a whole.

    `base_id` names the engine that serves it: models that share a base (adapters) share an engine and the
    trainer's processes. `adapter` is how an adapter is made, None for full weights.
    """

    model_id: str
    base_id: str
    checkpoint: str  # a shipped name, a folder, a URL or a hub id
    trainable: bool = True
    adapter: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelMap:
    """`models` by id, and the model id of each role.

    Raises:
        UsageError: a role names a model that is not declared, or a model that no role uses.
    """

    models: Mapping[str, Model]
    roles: Mapping[str, str]

    def __post_init__(self) -> None:
        for role, model_id in self.roles.items():
            if model_id not in self.models:
                raise UsageError(
                    f"role {role!r} speaks with model {model_id!r}, which is not declared"
                    f"{did_you_mean(model_id, self.models)}; declared: {', '.join(self.models) or 'none'}; "
                    f"add [models.{model_id}] or change [roles.{role}] model"
                )
        if unused := sorted(set(self.models) - set(self.roles.values())):
            raise UsageError(
                f"no role speaks with model {unused[0]!r}; remove [models.{unused[0]}] or give it a role"
            )

    def model_of(self, role: str) -> Model:
        return self.models[self.roles[role]]

    @property
    def trainable(self) -> list[Model]:
        return [m for m in self.models.values() if m.trainable]

    @property
    def regime(self) -> str:
        """A label for humans and trackers: full, separate, groups or adapters. Never branched on."""
        used = set(self.roles.values())
        bases = {self.models[model_id].base_id for model_id in used}
        if len(bases) == 1 < len(used):
            return "adapters"
        if len(used) == 1:
            return "full"
        return "separate" if len(used) == len(self.roles) else "groups"
