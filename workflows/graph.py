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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workflows.roles import Role
from workflows.state import State

if TYPE_CHECKING:
    from workflows.structure import Structure

Source = str | Callable[[State], Any]
"""Where an input comes from: a dotted path (`task.question`, `item`, `<step>.<key>`) or a function."""

Tool = Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]
"""`await tool(request)` gives a JSON value. A plain function runs in a thread.

Raises `ToolRefusal` for a request that is the policy's fault, `InfraError` for a failure that is worth a
retry. A plain function needs a time limit of its own where it may hang: a thread can't be stopped, and is
counted and kept apart when its call is given up. Tools are built in each player; `async def start(self)` is
called there once, to load what is heavy.
`def check(self)` is called before a run starts, and raises `UsageError` for what can't work.

A tool with the attribute `keeps_time = True` bounds each call itself, on a clock of its own (as the code
judge does by CPU time, so that a verdict does not depend on how busy the machine is): the player's
`tool_timeout_seconds` does not count for it.
"""


@dataclass(frozen=True, slots=True)
class LlmStep:
    """One call of a role. `inputs` gives each variable of the role's prompt, by name."""

    name: str
    role: str
    inputs: Mapping[str, Source]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One call of a tool with what `request` returns (a JSON value)."""

    name: str
    tool: str
    request: Callable[[State], Any]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A pure function of the state, for example building a context. Its value must be JSON."""

    name: str
    compute: Callable[[State], Any]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


Step = LlmStep | ToolStep | ControlStep


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` follows `source` where `when` holds (None: always). With a `limit` it leads back."""

    source: str
    target: str
    when: Callable[[State], bool] | None = None
    limit: int | None = None


@dataclass(frozen=True, init=False)
class Workflow:
    """Roles, steps and edges, checked as a whole.

    Args:
        roles: all roles; kept as a mapping by name.
        answer_step: the step whose parsed value is the answer of an episode; rewards take its last turn.
        tools: name → tool. See `Tool`.
        start: steps that start an episode; the first declared one if empty.
        metadata: JSON values for trackers and drawings.

    Raises:
        WorkflowError: what is wrong with it, where, and what to do.
    """

    name: str
    roles: Mapping[str, Role]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    answer_step: str | None
    tools: Mapping[str, Tool]
    start: tuple[str, ...]
    metadata: Mapping[str, Any]

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
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        from workflows.validation import check_workflow, refuse_duplicates

        roles, steps = tuple(roles), tuple(steps)
        refuse_duplicates(f"workflow {name!r}: role", (role.name for role in roles))
        values: dict[str, Any] = {
            "name": name,
            "roles": {role.name: role for role in roles},
            "steps": steps,
            "edges": tuple(edges),
            "answer_step": answer_step,
            "tools": dict(tools or {}),
            "start": tuple(start) or tuple(step.name for step in steps[:1]),
            "metadata": dict(metadata or {}),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        check_workflow(self)

    @functools.cached_property
    def structure(self) -> Structure:
        """Order, branches, loops and visibility, derived from the edges."""
        from workflows.structure import Structure

        return Structure.of(self)

    @property
    def order(self) -> tuple[str, ...]:
        """All steps, each after those that lead to it: the order that lists turns."""
        return self.structure.order

    @functools.cached_property
    def step_of(self) -> Mapping[str, Step]:
        return {step.name: step for step in self.steps}

    def with_tools(self, tools: Mapping[str, Tool]) -> Workflow:
        """The same workflow with some tools replaced, for example by stand-ins in a test.

        Raises:
            WorkflowError: a name that is no tool of this workflow.
        """
        return Workflow(
            self.name,
            self.roles.values(),
            self.steps,
            self.edges,
            answer_step=self.answer_step,
            tools={**self.tools, **tools},
            start=self.start,
            metadata=self.metadata,
        )
