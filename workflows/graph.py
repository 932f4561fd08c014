"""A workflow as a declared graph: roles, steps, edges. Immutable, and validated when it is made.

    Workflow(
        name="draft_and_check",
        roles=[writer, checker],
        steps=[LlmStep("draft", "writer", {"question": "task.question"}),
               LlmStep("check", "checker", {"draft": "draft"})],
        edges=[Edge("draft", "check"),
               Edge("check", "draft", when=lambda s: s["check"].value == "again", limit=2)],
        answer_step="draft",
    )

**Running order.** The first declared step starts (or those in `start`). An edge is *resolved* when its
source is over: taken if the source ran and `when` holds, skipped otherwise. A step runs once, when
all its edges are resolved and one of them is taken; if all are skipped it is skipped, and so are its
own edges. So a join always waits, runs once, and nothing that is pending is dropped.

**Loops.** An edge with a `limit` leads back: it may be taken that many times (in each entry of the
loop). The loop is every step on a way from its target to its source. When all of them are over, the
back edges are asked; a taken one runs the loop again as the next round. Edges that leave the loop are
resolved when it has ended, by its last round. A loop is entered at its target only.

**Branches.** `for_each` runs a step once for each item; steps with `same_branch=True` go on inside
the branch, without waiting for the other branches. A step without it joins: it waits for all. No
items: the step is skipped, so give its join another edge.

**Callables** (`when`, `for_each`, `compute`, `request`, and inputs that are not paths) are plain
functions of a `workflows.state.State`. They see what is certain to be over, never the gold answer.
An exception in one ends the episode with an error that names it. They travel by cloudpickle.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.roles import Role
from workflows.steps import ControlStep, Edge, LlmStep, Source, Step, Tool, ToolStep
from workflows.structure import Structure
from workflows.validation import check_graph, refuse_duplicates

# What a workflow's file needs: this is the public path of the parts too.
__all__ = ["ControlStep", "Edge", "LlmStep", "Source", "Step", "Tool", "ToolStep", "Workflow"]


@dataclass(frozen=True, init=False)
class Workflow:
    """Roles, steps and edges, checked as a whole.

    Args:
        roles: all roles; kept as a mapping by name.
        answer_step: the step whose parsed value is the answer of an episode; rewards take its last turn.
        branch_steps: steps whose every turn answers the task by itself: each is graded against gold, beside
            the team's answer.
        verdict_step: the step that judges answers of `branch_steps`: its value has a "verdict", which is
            "satisfied" or not.
        task: "questions", "mathematics" or "code": how these answers are graded, see `rewards.team_answers`.
        tools: name → tool. See `Tool`.
        start: steps that start an episode; the first declared one if empty.

    Attributes:
        structure: order, branches, loops and visibility, derived from the edges.

    Raises:
        WorkflowError: what is wrong with it, where, and what to do.
    """

    name: str
    roles: Mapping[str, Role]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    answer_step: str | None
    branch_steps: tuple[str, ...]
    verdict_step: str | None
    task: str | None
    tools: Mapping[str, Tool]
    start: tuple[str, ...]
    structure: Structure = field(repr=False, compare=False)

    def __init__(
        self,
        name: str,
        roles: Iterable[Role],
        steps: Iterable[Step],
        edges: Iterable[Edge] = (),
        *,
        answer_step: str | None = None,
        tools: Mapping[str, Tool] | None = None,
        start: Iterable[str] = (),
        branch_steps: Iterable[str] = (),
        verdict_step: str | None = None,
        task: str | None = None,
    ) -> None:
        roles, steps = tuple(roles), tuple(steps)
        refuse_duplicates(f"workflow {name!r}: role", (role.name for role in roles))
        values: dict[str, Any] = {
            "name": name,
            "roles": {role.name: role for role in roles},
            "steps": steps,
            "edges": tuple(edges),
            "answer_step": answer_step,
            "branch_steps": tuple(branch_steps),
            "verdict_step": verdict_step,
            "task": task,
            "tools": dict(tools or {}),
            "start": tuple(start) or tuple(step.name for step in steps[:1]),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        object.__setattr__(self, "structure", check_graph(**values))

    @property
    def order(self) -> tuple[str, ...]:
        """All steps, each after those that lead to it: the order that lists turns."""
        return self.structure.order

    @functools.cached_property
    def step_of(self) -> Mapping[str, Step]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    def with_tools(self, tools: Mapping[str, Tool]) -> Workflow:
        """This workflow with some tools replaced, for example by stand-ins in a test.

        Raises:
            WorkflowError: a name that is not a tool of this workflow.
        """
        return Workflow(
            self.name,
            self.roles.values(),
            self.steps,
            self.edges,
            answer_step=self.answer_step,
            tools={**self.tools, **tools},
            start=self.start,
            branch_steps=self.branch_steps,
            verdict_step=self.verdict_step,
            task=self.task,
        )
