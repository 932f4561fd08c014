"""Settings of roles, models and advantages that contradict each other, each refused with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pipeline.settings.effects import without_effect
from pipeline.settings.elsewhere import elsewhere
from pipeline.settings.schema import ModelSection, RoleSection
from pipeline.settings.training import LOSS_TERMS, PpoSection
from workflows.errors import UsageError, did_you_mean
from workflows.roles import RoleSettings

COLDEST: Final = 0.01  # vLLM raises a temperature below this to it


def check_role_overrides(roles: Mapping[str, RoleSection], models: Mapping[str, ModelSection]) -> None:
    """Refuse keys of `[roles.<name>.ppo]` that are unknown, or that one optimizer can't have by role."""
    for role, section in roles.items():
        model_id = str(section.model)
        known = (*PpoSection.model_fields, "weight")
        for key in section.ppo:
            if key not in known:
                raise UsageError(
                    f"roles.{role}.ppo: unknown key {key}{did_you_mean(key, known)}; a role that shares its "
                    f"model has {', '.join(sorted(LOSS_TERMS))} and weight"
                )
        if not models[model_id].train:
            if section.ppo:
                raise UsageError(
                    f"[roles.{role}.ppo]: model {model_id!r} of that role is not trained; remove it"
                )
            continue
        _check_numbers(role, section.ppo)
        others = [name for name in _roles_of(model_id, roles) if name != role]
        alien = sorted(set(section.ppo) - LOSS_TERMS - {"weight"})
        if others and alien:
            raise UsageError(
                f"roles.{role}.ppo.{alien[0]}: role {role!r} shares model {model_id!r} with "
                f"{', '.join(others)}, and one model has one optimizer; set it in "
                f"[models.{model_id}.ppo], or give the role a model of its own"
            )


def check_frozen_roles(roles: Mapping[str, RoleSection], models: Mapping[str, ModelSection]) -> None:
    """Refuse a model that is trained, but all of whose roles are frozen."""
    for model_id, model in models.items():
        names = _roles_of(model_id, roles)
        if model.train and names and all(roles[name].frozen for name in names):
            raise UsageError(
                f"all roles of model {model_id!r} are frozen ({', '.join(names)}); set "
                f"models.{model_id}.train = false instead"
            )


def check_training_sampling(role: str, sampling: RoleSettings) -> None:
    """Refuse sampling whose logprobs would not be those of the policy that is trained."""
    temperature = sampling.temperature
    cuts = {"top_p": sampling.top_p < 1, "top_k": sampling.top_k > 0, "min_p": sampling.min_p > 0}
    if any(cuts.values()):
        has = ", ".join(f"{name} = {getattr(sampling, name):g}" for name, is_on in cuts.items() if is_on)
        raise UsageError(
            f"role {role!r} is trained but samples with {has}: the trainer needs the probabilities of the "
            "whole vocabulary; use top_p = 1, top_k = 0 and min_p = 0. Evaluations have such settings of "
            "their own (evaluate.top_p)"
        )
    if 0 < temperature < COLDEST:
        raise UsageError(
            f"role {role!r} is trained but samples at temperature {temperature:g}: engines sample at "
            f"{COLDEST:g} at least, and the trainer would divide by another number; use {COLDEST:g} or more"
        )
    if temperature == 0:
        raise UsageError(
            f"role {role!r} is trained but samples greedily (temperature 0): every episode of a task would "
            "be the same; use a temperature above 0, for example 1.0"
        )


def check_untrained(models: Mapping[str, ModelSection]) -> None:
    """Refuse keys of training in a model that is not trained."""
    for model_id, model in models.items():
        for key in ("ppo", "critic", "trust_region"):
            if not model.train and getattr(model, key):
                raise UsageError(
                    f"[models.{model_id}.{key}] has no effect: the model is not trained; remove it, or set "
                    f"models.{model_id}.train = true"
                )


def check_patience(patience: int, every: int) -> None:
    """Refuse an early stop of a training that is never evaluated."""
    if patience and without_effect("evaluate.patience", {"evaluate.every": every}):
        raise UsageError(
            f"evaluate.patience = {patience} has no effect with evaluate.every = {every}: it counts "
            "evaluations on the way; remove it, or set evaluate.every above 0"
        )


def check_words(method: str | None, losses: Mapping[str, str]) -> None:
    """Refuse words that belong to another key, such as gae as a credit method; `losses` by key."""
    if method is not None and (hint := elsewhere("credit.use", method)):
        raise UsageError(f"credit.use = {method!r} is not a credit method{hint}")
    for key, loss in losses.items():
        if hint := elsewhere("ppo.loss", loss):
            raise UsageError(f"{key} = {loss!r} is not a loss{hint}")


def check_room(role: str, response_limit: int, model_id: str, max_model_len: int) -> None:
    """Refuse answers that leave no room for a prompt."""
    if response_limit >= max_model_len:
        raise UsageError(
            f"role {role!r} may answer with {response_limit} tokens, but model {model_id!r} has room for "
            f"{max_model_len} with its prompt; raise models.{model_id}.max_model_len, or lower "
            f"roles.{role}.max_response_tokens"
        )


def _roles_of(model_id: str, roles: Mapping[str, RoleSection]) -> list[str]:
    return [name for name, section in roles.items() if section.model == model_id]


def _check_numbers(role: str, ppo: Mapping[str, Any]) -> None:
    for key in (*sorted(LOSS_TERMS), "weight"):
        value = ppo.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"roles.{role}.ppo.{key} is {value!r}, expected a number; for example 0.5")
