"""How evaluations sample, and by what the best of them is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.plan.overview import overview
from pipeline.settings.reading import parse_settings
from pipeline.views.overview import overview_lines


def plan_of(scripted: Any, **evaluate: Any) -> EvaluationPlan:
    return assemble_evaluation(assemble(parse_settings(scripted(evaluate=evaluate))))


@pytest.mark.parametrize("own", [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.5, "top_k": 3}])
def test_an_evaluation_samples_with_its_own_settings_and_else_as_its_roles_do(
    scripted: Any, own: dict[str, Any]
) -> None:
    judge = {"checkpoint": "tiny-scripted", "engine": "scripted", "train": False}
    asked = scripted(
        models={"judge": judge},
        roles={
            "reader": {"model": "judge", "sampling": {"top_p": 0.8}},
            **{name: {"model": "team"} for name in ("decomposer", "answerer")},
        },
        evaluate={"temperature": 0.6, "samples": 2, **own},
    )
    plan = assemble(parse_settings(asked))
    evaluation = assemble_evaluation(plan)
    for name, role in evaluation.player_spec.roles.items():
        trained = plan.player_spec.roles[name]
        assert role.temperature == 0.6
        for key in ("top_p", "top_k", "min_p"):
            assert getattr(role, key) == own.get(key, getattr(trained, key))
    assert evaluation.player_spec.roles["reader"].top_p == own.get("top_p", 0.8)


def test_sampling_is_a_part_of_what_plays_depend_on(scripted: Any) -> None:
    plain = plan_of(scripted, temperature=0.6).fingerprints["rollout"]
    cut = plan_of(scripted, temperature=0.6, top_p=0.9).fingerprints["rollout"]
    assert cut == plain | {"top_p": 0.9}  # and without it those of older evaluations stay as they are


def test_a_vote_and_a_test_split_sample_alike(scripted: Any) -> None:
    plan = plan_of(scripted, temperature=0.6, top_p=0.9, test={}, vote={"answers": 3})
    for each in (plan, *plan.also):
        assert {role.top_p for role in each.player_spec.roles.values()} == {0.9}


def test_check_says_how_evaluations_sample_and_what_chooses(scripted: Any) -> None:
    settings = scripted(evaluate={"temperature": 0.6, "top_p": 0.9, "best_by": "solved"})
    values = overview(assemble(parse_settings(settings)))
    (line,) = [line for line in overview_lines(values) if str(line).startswith("evaluate")]
    assert "temperature 0.6, top_p 0.9" in str(line)
    assert "the best checkpoint by token_f1, tasks solved" in str(line)
    assert values["evaluation"]["top_k"] is None
