"""The teams of a replacement as plans: with the predecessor, with the newcomer, and while it is aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.plan.assemble import Plan, assemble, assemble_evaluation
from pipeline.plan.bases import OF_THE_BASE
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.replacement.ladder import Place
from pipeline.settings.overrides import set_override
from pipeline.settings.reading import parse_settings, read_toml
from pipeline.settings.replace import ReplaceSection
from pipeline.settings.schema import ModelSection, Settings
from pipeline.store.run import Run
from pipeline.store.updates import newest_version
from stages.engines.kinds import engine_class
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError, did_you_mean

BACKTRACK: Final = 3  # how often a step of the newcomer is halved before it is taken back


@dataclass(frozen=True, slots=True)
class Team:
    """One team of a replacement."""

    plan: Plan
    evaluation: EvaluationPlan


def team_of(settings: Settings) -> Team:
    """The plan of a team and of its evaluation, checked."""
    plan = assemble(settings)
    return Team(plan, assemble_evaluation(plan))


def stored_settings(run: Run, name: str, overrides: Sequence[str]) -> Settings:
    """The settings that a run keeps, under another name and with overrides.

    Raises:
        UsageError: they can't be read, or an override is not a setting.
    """
    text = run.folder.read_text("settings.toml")
    if text is None:
        raise UsageError(f"{run.folder.url} has no settings.toml, so nothing is known of its team")
    raw = read_toml(text.encode(), f"{run.folder.url}/settings.toml")
    for override in overrides:
        set_override(raw, override)
    settings = parse_settings(raw)
    root = run.folder.url.rpartition("/")[0]
    return settings.model_copy(update={"run": settings.run.model_copy(update={"name": name, "root": root})})


def check_model(team: Team, model: str) -> None:
    """Refuse a model that has no place to be taken, and a probe on tasks that train the team.

    Raises:
        UsageError: with what to do.
    """
    plan, resolved = team.plan, team.plan.resolved
    if model not in plan.models.models:
        raise UsageError(
            f"the team has no model {model!r}{did_you_mean(model, plan.models.models)}; its models are: "
            f"{', '.join(plan.models.models)}"
        )
    section = resolved.model_sections[model]
    if not engine_class(section.engine).needs_checkpoint:
        raise UsageError(
            f'model {model!r} speaks by engine = "{section.engine}", which has no weights here that another '
            f"checkpoint could take the place of; give models.{model} another engine in the settings"
        )
    if not plan.models.models[model].trainable:
        raise UsageError(
            f"models.{model}.train is false, so the newcomer could be neither taught nor aligned; pass --set "
            f"models.{model}.train=true, or change its checkpoint in the settings of a new run"
        )
    if team.evaluation.split == resolved.data.split and resolved.evaluate.path is None:
        raise UsageError(
            f"[evaluate] split = {team.evaluation.split!r} is what the team trains on, so its score there "
            "says nothing of a newcomer; pass --set evaluate.split=... with a split that training does not "
            "touch"
        )
    if team.evaluation.num_tasks < 2:
        raise UsageError(
            "the gate compares tasks in pairs and needs at least 2 of them; pass --set evaluate.tasks=32, or "
            "leave it out for all tasks of the split"
        )


def place_of(team: Team, model: str) -> Place:
    """What the place of a model asks of whoever takes it."""
    plan = team.plan.resolved.model_plans[model]
    engine = team.plan.engine_specs[plan.model.base_id]
    return Place(
        model=model,
        folder=engine.checkpoint,
        max_model_len=plan.section.max_model_len,
        stops=tuple(dict.fromkeys(stop for role in plan.roles for stop in role.sampling.stop)),
        template_options=plan.section.template_options,
        longest_reply=max(role.response_limit for role in plan.roles),
    )


def with_newcomer(settings: Settings, model: str, checkpoint: str) -> Settings:
    """The settings of the team in which `checkpoint` speaks for `model`; an adapter gets it as its own base.

    An adapter whose base is that very checkpoint stays on it, and begins anew.
    """
    section = settings.models[model]
    models: dict[str, ModelSection] = dict(settings.models)
    changes: dict[str, Any] = {"checkpoint": checkpoint, "reference": "initial"}
    if section.base is not None:
        base = models[section.base]
        if resolve_checkpoint(base.checkpoint) == resolve_checkpoint(checkpoint):
            changes = {"reference": "initial"}
        else:
            changes = {**{key: getattr(base, key) for key in OF_THE_BASE}, "base": None, **changes}
    models[model] = section.model_copy(update=changes)
    used = {s.base for s in models.values()} | {role.model for role in settings.roles.values()}
    if section.base is not None and section.base not in used:
        del models[section.base]
    return settings.model_copy(update={"models": models})


def aligned(settings: Settings, model: str, section: ReplaceSection) -> Settings:
    """The settings while the newcomer is trained in the team: trust regions, and an anchor at its own start.

    No trust region of the run's own holds meanwhile.
    """
    steps = {"backtrack": BACKTRACK, "reject": True}
    models = {}
    for name, of_model in settings.models.items():
        changes: dict[str, Any] = {"trust_region": {}}
        if of_model.train:
            changes["trust_region"] = {"radius": section.settle_radius, **steps}
        if name == model:
            changes["trust_region"] = {"radius": section.step_radius, **steps}
            changes["ppo"] = {**of_model.ppo, "kl_coefficient": section.anchor, "kl_in": "loss"}
            changes["reference"] = "initial"
        models[name] = of_model.model_copy(update=changes)
    none = type(settings.trust_region)()
    return settings.model_copy(update={"models": models, "trust_region": none})


def versions_of(run: Run, team: Team) -> dict[str, int]:
    """The version of each model of a run as it stands."""
    return {
        model: max(newest_version(run.newest_first(), model) or 0, run.begins(model))
        for model in team.plan.models.models
    }


def incumbent_folder(run: Run, team: Team, model: str, version: int) -> tuple[str, bool]:
    """Where the predecessor's weights are, and whether they are an adapter on its engine's checkpoint.

    Raises:
        UsageError: they are gone.
    """
    engine = team.plan.engine_specs[team.plan.models.models[model].base_id]
    if version == run.begins(model):
        return engine.checkpoint, False
    if version not in run.weights_versions(model):
        raise UsageError(
            f"the weights of model {model!r} at version {version} are not in {run.folder.url}/checkpoints; "
            "the run can't be gone on with, nor replaced in"
        )
    return f"{run.checkpoint_uri(model, version)}/weights", team.plan.models.models[model].adapter is not None


def in_turn(plan: Plan, models: Sequence[str]) -> Plan:
    """The plan with a schedule that trains these models alone, in this order."""
    from pipeline.replacement.schedule import Only

    schedule = Only(tuple(models))
    schedule.check(plan)
    return replace(plan, schedule=schedule)


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names whose values differ."""
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
