"""[[rewards]] in settings: whom a reward goes to, checked against the workflow before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.resolve import load_and_resolve
from pipeline.plan.rewards import weighted_rewards
from pipeline.settings.reading import parse_settings
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.scoring.weighted import WeightedRewards
from rewards.token_f1 import TokenF1
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]


def rewards(use: str, *sections: dict[str, Any], **settings: Any) -> WeightedRewards:
    team = load_and_resolve(parse_settings({"workflow": {"use": use}, "rewards": sections, **settings}))
    return weighted_rewards(team.rewards, team.workflow, team.format_weights, team.sandbox)


def test_a_reward_knows_whom_it_goes_to() -> None:
    items = rewards(
        "mask",
        {"use": "token_f1", "weight": 0.0},
        {"use": "f1_by_round"},
        {"use": "token_f1", "name": "plan_f1", "roles": ["planner"], "steps": ["plan"]},
    ).items
    assert [(i.name, i.weight) for i in items] == [("token_f1", 0.0), ("f1_by_round", 1.0), ("plan_f1", 1.0)]
    assert items[0].roles is items[0].steps is None
    assert (items[2].roles, items[2].steps) == (frozenset({"planner"}), frozenset({"plan"}))


def test_the_workflow_and_the_roles_give_the_obvious_options() -> None:
    (f1,) = rewards("single", {"use": "token_f1"}).items
    assert f1.reward == TokenF1(answer_step="solve")
    (own,) = rewards("single", {"use": "token_f1", "options": {"answer_step": "other"}}).items
    assert own.reward == TokenF1(answer_step="other")
    (by_round,) = rewards("mask", {"use": "f1_by_round"}).items
    assert by_round.reward == F1ByRound()
    (form,) = rewards("mask", {"use": "format"}, roles={"planner": {"format_weight": 0.5}}).items
    assert form.reward == Format(
        dict.fromkeys(["answerer", "searcher", "summariser", "updater"], 1.0) | {"planner": 0.5}
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"roles": ["planer"]}, r"roles names 'planer'.*did you mean 'planner'.*it has: planner, answerer"),
        ({"steps": ["planner"]}, r"steps names 'planner'.*did you mean 'plan'"),
        ({"roles": []}, "empty list"),
        ({"roles": "planner"}, "roles"),
        ({"role": ["planner"]}, "did you mean 'roles'"),
    ],
)
def test_roles_and_steps_that_the_workflow_does_not_have_are_refused(section: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rewards("mask", {"use": "token_f1"} | section)
