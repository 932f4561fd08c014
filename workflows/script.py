"""A workflow as an async function: for teams whose course is easier to program than to draw.

    async def run(team: Team, task: Mapping[str, Any]) -> None:
        draft = await team.call("writer", {"question": task["question"], "notes": []})
        for _ in range(3):
            note = await team.call("critic", {"draft": draft})
            if note.best == "good":
                break
            draft = await team.call("writer", {"question": task["question"], "notes": [draft, note]})

    ScriptWorkflow("draft_and_check", roles=[writer, critic], run=run, answer_step="writer")

The same player plays it, with the same rows, limits, statuses and seeds as a declared graph. What the
function may do, and how its turns are named, stands in `workflows.team`. What only a graph can promise is
left to the author: that every prompt gets its variables is found when the step is played, not before.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from workflows.crew import Crew
from workflows.errors import WorkflowError, did_you_mean
from workflows.graph import Workflow
from workflows.pace import Spawning
from workflows.roles import Role
from workflows.steps import Tool
from workflows.team import Team
from workflows.validation import check_graded_steps, check_tools, refuse_duplicates

Function: TypeAlias = (
    Callable[[Team, Mapping[str, Any]], Awaitable[Any]] | Callable[[Crew, Mapping[str, Any]], Awaitable[Any]]
)


@dataclass(frozen=True, init=False)
class ScriptWorkflow:
    """Roles, tools and an async function that calls them.

    Args:
        roles: all roles; kept as a mapping by name.
        run: `async def run(team, task)`. What it returns is not used. `task` is the task's inputs, never
            its gold answer.
        tools: name → tool. See `workflows.steps.Tool`.
        steps: step → the role or tool that acts in it, or None for a value that the function notes; in
            running order. Without it each role and each tool is one step of its own name. The function
            names no other step.
        answer_step: the step whose parsed value is the answer of an episode; rewards take its last turn.
        spawning: what plays may spawn others, and which is first; `run` then gets a `workflows.crew.Crew`.
        branch_steps, verdict_step, task: as of `workflows.graph.Workflow`.

    Raises:
        WorkflowError: what is wrong with it, and what to do.
    """

    name: str
    roles: Mapping[str, Role]
    run: Function
    tools: Mapping[str, Tool]
    steps: Mapping[str, str | None]
    answer_step: str | None
    branch_steps: tuple[str, ...]
    verdict_step: str | None
    task: str | None
    spawning: Spawning | None

    def __init__(
        self,
        name: str,
        roles: Iterable[Role],
        run: Function,
        *,
        tools: Mapping[str, Tool] | None = None,
        steps: Mapping[str, str | None] | None = None,
        answer_step: str | None = None,
        branch_steps: Iterable[str] = (),
        verdict_step: str | None = None,
        task: str | None = None,
        spawning: Spawning | None = None,
    ) -> None:
        roles, tools = tuple(roles), dict(tools or {})
        refuse_duplicates(f"workflow {name!r}: role", (role.name for role in roles))
        actors = [*(role.name for role in roles), *tools]
        refuse_duplicates(f"workflow {name!r}: role or tool", actors)
        values: dict[str, Any] = {
            "name": name,
            "roles": {role.name: role for role in roles},
            "run": run,
            "tools": tools,
            "steps": {actor: actor for actor in actors} if steps is None else dict(steps),
            "answer_step": answer_step,
            "branch_steps": tuple(branch_steps),
            "verdict_step": verdict_step,
            "task": task,
            "spawning": spawning,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        try:
            _check(self, actors)
        except WorkflowError as error:
            raise WorkflowError(f"workflow {name!r}: {error}") from None

    @property
    def order(self) -> tuple[str, ...]:
        """All steps: the order that lists turns of which neither came after the other."""
        return tuple(self.steps)

    def with_tools(self, tools: Mapping[str, Tool]) -> ScriptWorkflow:
        """This workflow with some tools replaced, for example by stand-ins in a test.

        Raises:
            WorkflowError: a name that is not a tool of this workflow.
        """
        for name in tools:
            if name not in self.tools:
                raise WorkflowError(
                    f"workflow {self.name!r} has no tool {name!r}{did_you_mean(name, self.tools)}"
                )
        return ScriptWorkflow(
            self.name,
            self.roles.values(),
            self.run,
            tools={**self.tools, **tools},
            steps=self.steps,
            answer_step=self.answer_step,
            branch_steps=self.branch_steps,
            verdict_step=self.verdict_step,
            task=self.task,
            spawning=self.spawning,
        )


AnyWorkflow: TypeAlias = Workflow | ScriptWorkflow
"""What a `build()` may return. Both have `name`, `roles`, `tools`, `order`, `answer_step`, `with_tools`."""


def _check(workflow: ScriptWorkflow, actors: list[str]) -> None:
    check_tools(workflow.tools)
    run, call = workflow.run, getattr(type(workflow.run), "__call__", None)  # noqa: B004
    if not (inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(call)):
        raise WorkflowError(
            f"run must be an async function, as in async def run(team, task); got {workflow.run!r}"
        )
    if not workflow.steps:
        raise WorkflowError("it has no role, tool or step")
    for step, actor in workflow.steps.items():
        if not step.isidentifier():
            raise WorkflowError(f"a step's name is letters, digits and '_'; got {step!r}")
        if actor is not None and actor not in actors:
            raise WorkflowError(
                f"step {step!r} names {actor!r}, which is not a role or tool{did_you_mean(actor, actors)}; "
                f"there are: {', '.join(actors) or 'none'}"
            )
    used = set(workflow.steps.values())
    if unused := [actor for actor in actors if actor not in used]:
        raise WorkflowError(f"{unused[0]!r} acts in no step; remove it or name it in steps")
    llm_steps = [step for step, actor in workflow.steps.items() if actor in workflow.roles]
    check_graded_steps(workflow.branch_steps, workflow.verdict_step, llm_steps)
    if (answer := workflow.answer_step) is None:
        return
    if answer not in workflow.steps:
        raise WorkflowError(
            f"answer_step names {answer!r}, which is not a step{did_you_mean(answer, workflow.steps)}; "
            f"steps: {', '.join(workflow.steps)}"
        )
    if workflow.steps[answer] in workflow.tools:
        raise WorkflowError(f"answer_step {answer!r} is a tool step, which has no parsed value")
