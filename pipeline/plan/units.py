"""Which units of a team speak when: what orders and groups of updates are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workflows.script import AnyWorkflow, ScriptWorkflow
from workflows.steps import LlmStep

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

Unit = tuple[str, ...]
"""Models that are updated together: most often one."""


def first_words(plan: Plan) -> dict[str, int]:
    """By model: the place in the workflow of the first step that one of its roles speaks at."""
    workflow, places = plan.workflow, dict[str, int]()
    for place, step in enumerate(workflow.order):
        if (role := _role_at(workflow, step)) is not None:
            places.setdefault(plan.models.model_of(role).model_id, place)
    return places


def _role_at(workflow: AnyWorkflow, step: str) -> str | None:
    """The role that speaks at a step; None where none does."""
    if isinstance(workflow, ScriptWorkflow):
        actor = workflow.steps[step]
        return actor if actor in workflow.roles else None
    node = workflow.step_of[step]
    return node.role if isinstance(node, LlmStep) else None


def coloured(plan: Plan, trained: Sequence[str]) -> list[Unit]:
    """Groups of models between whose steps no path leads, each model in the first group that it fits in.

    Their updates shift no contexts of each other, as long as the workflow's graph says all: a script has
    none, so there every model is alone.
    """
    workflow = plan.workflow
    if isinstance(workflow, ScriptWorkflow):
        return []
    steps: dict[str, list[str]] = {}
    for step in workflow.order:
        if (role := _role_at(workflow, step)) is not None:
            steps.setdefault(plan.models.model_of(role).model_id, []).append(step)
    sees = workflow.structure.sees
    groups: list[list[str]] = []
    for name in trained:
        mine = steps.get(name, [])

        def is_apart(other: str, mine: Sequence[str] = mine) -> bool:
            return not any(sees(a, b) or sees(b, a) for a in mine for b in steps.get(other, []))

        group = next((group for group in groups if all(map(is_apart, group))), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [tuple(group) for group in groups]
