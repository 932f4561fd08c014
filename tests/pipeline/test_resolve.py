"""What settings mean for each model and each role of a workflow, worked out and checked in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.resolve import ModelPlan, Resolved, RolePlan, load_and_resolve, resolve
from pipeline.settings.reading import parse_settings
from stages.training.loss.spec import RoleLoss
from workflows.errors import UsageError
from workflows.loading import load_workflow

Raw = Callable[..., dict[str, Any]]
GROUPS = {"sharing": {"groups": {"reading": ["reader"], "asking": ["decomposer", "answerer"]}}}


def resolved(scripted: Raw, **changes: Any) -> Resolved:
    return load_and_resolve(parse_settings(scripted(**changes)))


def test_a_model_has_the_shared_numbers_its_own_and_those_of_its_single_role(scripted: Raw) -> None:
    plans = resolved(
        scripted,
        **GROUPS,
        ppo={"learning_rate": 1e-4, "clip_high": 0.3, "epochs": 2},
        models={"team": {"ppo": {"clip_high": 0.5, "epochs": 3}}},
        roles={"reader": {"ppo": {"epochs": 4, "weight": 2.0}}, "answerer": {"ppo": {"clip_low": 0.1}}},
    ).model_plans
    reading, asking = plans["reading"], plans["asking"]
    assert [p.ppo.learning_rate for p in (reading, asking)] == [1e-4, 1e-4]
    assert [p.ppo.clip_high for p in (reading, asking)] == [0.5, 0.5]
    assert [p.ppo.epochs for p in (reading, asking)] == [4, 3]
    # a single role's terms are the model's by then, those of roles that share one stay apart
    assert reading.role_losses == {"reader": RoleLoss(weight=2.0)}
    assert asking.role_losses == {"answerer": RoleLoss(clip_low=0.1)}
    assert asking.ppo.clip_low == 0.2


def test_a_critic_has_the_models_own_keys_and_may_be_declared_by_a_model_alone(scripted: Raw) -> None:
    shared = {"critic": {"kind": "head", "coefficient": 0.25}}
    plan = resolved(scripted, **shared, models={"team": {"critic": {"learning_rate": 2e-5}}})
    critic = plan.model_plans["team"].critic
    assert critic is not None
    assert (critic.kind, critic.coefficient, critic.learning_rate) == ("head", 0.25, 2e-5)
    assert resolved(scripted).model_plans["team"].critic is None
    alone = resolved(scripted, models={"team": {"critic": {"kind": "model"}}}).model_plans["team"].critic
    assert alone is not None
    assert alone.kind == "model"


def test_every_role_has_its_model_its_sampling_and_its_limit(scripted: Raw) -> None:
    team = resolved(
        scripted,
        **GROUPS,
        rollout={"temperature": 0.9},
        roles={"reader": {"max_response_tokens": 33, "sampling": {"temperature": 0.5}}},
    )
    assert {name: role.model_id for name, role in team.roles.items()} == dict(team.models.roles)
    assert team.roles["reader"].response_limit == 33
    limit = team.workflow.roles["answerer"].max_response_tokens
    assert team.roles["answerer"].response_limit == limit
    assert [team.roles[r].sampling.temperature for r in ("reader", "answerer")] == [0.5, 0.9]
    assert [role.name for role in team.model_plans["asking"].roles] == ["decomposer", "answerer"]


@pytest.mark.parametrize("regime", ["full", "separate", "adapters"])
def test_what_a_run_keeps_resolves_to_the_same_values(scripted: Raw, regime: str) -> None:
    team = resolved(scripted, sharing={"regime": regime}, models={"team": {"ppo": {"epochs": 2}}})
    again = resolve(team.settings, team.workflow)
    for field in dataclasses.fields(Resolved):
        assert getattr(again, field.name) == getattr(team, field.name), field.name
    assert again.dump == team.dump


def test_bases_that_no_role_speaks_with_keep_their_section_and_are_no_models(scripted: Raw) -> None:
    team = resolved(scripted, sharing={"regime": "adapters"})
    assert set(team.model_sections) == {"team", *team.workflow.roles}
    assert set(team.model_plans) == set(team.workflow.roles) == {m.model_id for m in team.trained}
    assert {plan.model.base_id for plan in team.model_plans.values()} == {"team"}


def test_credit_has_its_method_by_name(scripted: Raw) -> None:
    assert resolved(scripted).credit.use == "group_relative"
    raw = scripted(advantage={"use": "gae"}, critic={"kind": "head"})
    del raw["credit"]
    assert load_and_resolve(parse_settings(raw)).credit.use == "none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": {"team": {"ppo": {"learning_rat": 1}}}}, "models.team.ppo: unknown key learning_rat"),
        ({"models": {"team": {"ppo": {"epochs": 0}}}}, "models.team.ppo: epochs"),
        ({"models": {"team": {"critic": {"kin": "head"}}}}, "models.team.critic: unknown key kin"),
        (
            {"sharing": {"regime": "separate"}, "models": {"team": {"ppo": {"learning_rat": 1}}}},
            "models.team.ppo: unknown key learning_rat (did you mean 'learning_rate'?)",
        ),
        (
            {"sharing": {"regime": "separate"}, "roles": {"reader": {"ppo": {"epochs": 0}}}},
            "roles.reader.ppo: epochs",
        ),
    ],
)
def test_a_wrong_override_is_refused_where_the_file_has_it(
    scripted: Raw, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        resolved(scripted, **changes)
    assert message in str(refusal.value)


def test_a_workflow_that_is_already_loaded_is_taken_as_it_is(scripted: Raw) -> None:
    settings = parse_settings(scripted())
    workflow = load_workflow(settings.workflow.use, settings.workflow.options)
    assert resolve(settings, workflow).workflow is workflow


@pytest.mark.parametrize("kind", [Resolved, ModelPlan, RolePlan])
def test_resolved_values_cannot_change(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
