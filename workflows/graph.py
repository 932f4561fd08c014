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
from typing import Any, Final

from workflows.errors import WorkflowError, did_you_mean
from workflows.roles import Role
from workflows.steps import ControlStep, Edge, LlmStep, Source, Step, Tool, ToolStep
from workflows.structure import Structure
from workflows.validation import check_graph, refuse_duplicates
from workflows.vocabulary import Act

# What a workflow's file needs: this is the public path of the parts too.
__all__ = ["ControlStep", "Edge", "LlmStep", "Source", "Step", "Tool", "ToolStep", "Workflow"]

RETURNS: Final = ("last", "first", "majority", "surest")
"""Which round's answer a team may give: see `workflows.playing.returned`."""
RETURNED: Final = "returned"
"""The step that notes it, where it is not the last one."""


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

        returns: which round's answer is that of an episode, an entry of `RETURNS`. Other than "last", a turn
            of step `RETURNED` at the episode's end has it, and is the answer step for all that reads answers.

    Attributes:
        said_in: the step that answers in each round; `answer_step` as it was given.
        structure: order, branches, loops and visibility, derived from the edges.

    Raises:
        WorkflowError: what is wrong with it, where, and what to do.
    """

    name: str
    roles: Mapping[str, Role]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    answer_step: str | None
    said_in: str | None
    returns: str
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
        returns: str = "last",
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
        structure = check_graph(**values)
        values |= {"said_in": answer_step, "returns": returns, "structure": structure}
        if returns != "last":
            _check_returns(values)
            values["answer_step"] = RETURNED
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def order(self) -> tuple[str, ...]:
        """All steps, each after those that lead to it: the order that lists turns."""
        return (*self.structure.order, *((RETURNED,) if self.returns != "last" else ()))

    def returning(self, returns: str) -> Workflow:
        """This workflow with another choice of the round whose answer it gives.

        Raises:
            WorkflowError: there is no such choice, or it has no effect here.
        """
        return self._again(returns=returns)

    @functools.cached_property
    def step_of(self) -> Mapping[str, Step]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    def with_tools(self, tools: Mapping[str, Tool]) -> Workflow:
        """This workflow with some tools replaced, for example by stand-ins in a test.

        Raises:
            WorkflowError: a name that is not a tool of this workflow.
        """
        return self._again(tools={**self.tools, **tools})

    def _again(self, **changes: Any) -> Workflow:
        values: dict[str, Any] = {
            "answer_step": self.said_in,
            "tools": self.tools,
            "start": self.start,
            "branch_steps": self.branch_steps,
            "verdict_step": self.verdict_step,
            "task": self.task,
            "returns": self.returns,
        }
        return Workflow(self.name, self.roles.values(), self.steps, self.edges, **values | changes)


def _check_returns(values: Mapping[str, Any]) -> None:
    """Refuse a choice of the round whose answer is given where it has no effect.

    Raises:
        WorkflowError: naming it.
    """
    returns, step, name = values["returns"], values["said_in"], values["name"]
    if returns not in RETURNS:
        raise WorkflowError(
            f"returns is {returns!r}{did_you_mean(returns, RETURNS)}; use one of {', '.join(RETURNS)}"
        )
    if not any(step in loop.body for loop in values["structure"].loops):
        said = "declares no answer_step" if step is None else f"answers once, in step {step!r}"
        raise WorkflowError(
            f'returns = "{returns}" has no effect: workflow {name!r} {said}, so there are no rounds to '
            "choose from; remove it"
        )
    deciders = [role.name for role in values["roles"].values() if role.decides == Act.STOP]
    if returns == "surest" and not deciders:
        raise WorkflowError(
            f'returns = "surest" has no effect: no role of workflow {name!r} decides on a stop, so nobody '
            "says how sure of an answer it is; set its option learned_stop, or choose another one"
        )
    if any(each.name == RETURNED for each in values["steps"]):
        raise WorkflowError(f"step {RETURNED!r} has the name of what returns notes; give it another name")
