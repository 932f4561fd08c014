"""Everything that can be wrong with a declared workflow and can be known before it is played."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workflows.errors import WorkflowError, did_you_mean
from workflows.roles import Role
from workflows.steps import ControlStep, Edge, LlmStep, Step, Tool, ToolStep
from workflows.structure import Structure

_RESERVED = ("task", "item")  # heads of input paths


def check_graph(
    name: str,
    roles: Mapping[str, Role],
    steps: Sequence[Step],
    edges: Sequence[Edge],
    answer_step: str | None,
    branch_steps: Sequence[str],
    verdict_step: str | None,
    task: str | None,
    tools: Mapping[str, Tool],
    start: Sequence[str],
) -> Structure:
    """The structure of a graph, which is refused if it can't be played. Arguments as of `Workflow`.

    Raises:
        WorkflowError: one message, for the first fault.
    """
    try:
        _check_names(steps, roles, tools)
        _check_edges(steps, edges)
        structure = Structure.of(
            steps, edges
        )  # raises for cycles, and for limits on edges that lead nowhere back
        _check_start(start, structure)
        _check_branches(steps, edges, structure)
        _check_loops(start, edges, structure)
        for step in steps:
            _check_step(step, roles, structure)
        _check_answer_step(answer_step, steps)
        check_graded_steps(
            branch_steps, verdict_step, [step.name for step in steps if isinstance(step, LlmStep)]
        )
    except WorkflowError as error:
        raise WorkflowError(f"workflow {name!r}: {error}") from None
    return structure


def _check_names(steps: Sequence[Step], roles: Mapping[str, Role], tools: Mapping[str, Tool]) -> None:
    if not steps:
        raise WorkflowError("it has no steps")
    refuse_duplicates("step", (step.name for step in steps))
    for step in steps:
        if not step.name.isidentifier() or step.name in _RESERVED:
            raise WorkflowError(
                f"a step's name is letters, digits and '_', and not 'task' or 'item'; got {step.name!r}"
            )
        if isinstance(step, LlmStep):
            _known(step.role, roles, f"step {step.name!r} names role")
        if isinstance(step, ToolStep):
            _known(step.tool, tools, f"step {step.name!r} names tool")
    used_roles = {step.role for step in steps if isinstance(step, LlmStep)}
    used_tools = {step.tool for step in steps if isinstance(step, ToolStep)}
    if unused := [name for name in roles if name not in used_roles]:
        raise WorkflowError(f"role {unused[0]!r} is used by no step; remove it or name it in an LlmStep")
    if unused := [name for name in tools if name not in used_tools]:
        raise WorkflowError(f"tool {unused[0]!r} is used by no step; remove it or name it in a ToolStep")
    check_tools(tools)


def check_tools(tools: Mapping[str, Any]) -> None:
    """Refuse a tool that can't be called, a class above all."""
    for name, tool in tools.items():
        if not callable(tool) or isinstance(tool, type):
            raise WorkflowError(
                f"tool {name!r} is {tool!r}; give an object that can be called: tool(request)"
            )


def _check_edges(steps: Sequence[Step], edges: Sequence[Edge]) -> None:
    names = [step.name for step in steps]
    for edge in edges:
        where = f"edge {edge.source!r} → {edge.target!r}"
        for name in (edge.source, edge.target):
            _known(name, names, f"{where} names step")
        if edge.when is not None:
            _plain_function(edge.when, f"{where}: when")
        if edge.limit is not None and (not isinstance(edge.limit, int) or edge.limit < 1):
            raise WorkflowError(f"{where}: limit must be a whole number of at least 1, got {edge.limit!r}")
    refuse_duplicates("edge", (f"{e.source} → {e.target}" for e in edges))


def _check_start(start: Sequence[str], structure: Structure) -> None:
    for name in start:
        _known(name, structure.order, "start names step")
        if structure.incoming[name]:
            raise WorkflowError(
                f"there is no start: step {name!r} should start, but an edge leads to it; "
                "list the starting step first, or name it in start"
            )
    for name in structure.order:
        if not structure.incoming[name] and name not in start:
            raise WorkflowError(
                f"step {name!r} can't be reached: no edge leads to it; add one, or name it in start"
            )


def _check_branches(steps: Sequence[Step], edges: Sequence[Edge], structure: Structure) -> None:
    for step in steps:
        regions = {structure.region[edges[i].source]: edges[i].source for i in structure.incoming[step.name]}
        if step.for_each is not None:
            _plain_function(step.for_each, f"step {step.name!r}: for_each")
            if step.same_branch:
                raise WorkflowError(f"step {step.name!r} has both for_each and same_branch; choose one")
        elif step.same_branch and (len(regions) != 1 or None in regions):
            sources = ", ".join(map(repr, regions.values())) or "no step"
            raise WorkflowError(
                f"step {step.name!r} has same_branch, so all its edges must come from the branches of one "
                f"for_each step; they come from {sources}"
            )


def _check_loops(start: Sequence[str], edges: Sequence[Edge], structure: Structure) -> None:
    for loop in structure.loops:
        scopes = {structure.region[edges[i].source] for i in loop.back}
        target_scope = structure.region[loop.target]
        # a loop that starts at a for_each step and ends after its join spreads it anew in each round
        fits = target_scope in scopes or (scopes == {None} and target_scope == loop.target)
        if len(scopes) > 1 or not fits:
            source = edges[loop.back[-1]].source
            raise WorkflowError(
                f"edge {source!r} → {loop.target!r} leads back across a for_each; "
                "a loop lies within one branch or outside all of them"
            )
        for index in (i for name in loop.body for i in structure.incoming[name]):
            edge = edges[index]
            if edge.source not in loop.body and edge.target != loop.target:
                raise WorkflowError(
                    f"edge {edge.source!r} → {edge.target!r} enters the loop of {loop.target!r} from the "
                    f"side; a loop is entered at its target: lead the edge to {loop.target!r}"
                )
        if entered := [n for n in start if n in loop.body and n != loop.target]:
            raise WorkflowError(f"step {entered[0]!r} starts inside the loop of {loop.target!r}")


def _check_step(step: Step, roles: Mapping[str, Role], structure: Structure) -> None:
    where = f"step {step.name!r}"
    if isinstance(step, ToolStep):
        _plain_function(step.request, f"{where}: request")
    elif isinstance(step, ControlStep):
        _plain_function(step.compute, f"{where}: compute")
    else:
        wanted = roles[step.role].variables
        for name in wanted:
            if name not in step.inputs:
                raise WorkflowError(
                    f"{where} does not give {name!r}, which the prompt of role {step.role!r} uses"
                    f"{did_you_mean(name, step.inputs)}; it gives: {', '.join(step.inputs) or 'nothing'}"
                )
        for name, source in step.inputs.items():
            if name not in wanted:
                raise WorkflowError(
                    f"{where} gives {name!r}, which the prompt of role {step.role!r} does not use"
                    f"{did_you_mean(name, wanted)}"
                )
            if isinstance(source, str):
                _check_path(source, step, structure)
            else:
                _plain_function(source, f"{where}: input {name!r}")


def _check_path(path: str, step: Step, structure: Structure) -> None:
    head = path.split(".")[0]
    where = f"step {step.name!r}: path {path!r}"
    if head == "task":
        if "." not in path:
            raise WorkflowError(f"{where} must name a field of the task, as in 'task.question'")
        return
    if head == "item":
        if structure.region[step.name] is None:
            raise WorkflowError(f"{where}, but it is in no branch of a for_each step")
        return
    _known(head, [*_RESERVED, *structure.order], f"{where} starts with")
    if not structure.sees(step.name, head):
        raise WorkflowError(f"{where}, but {head!r} is not before {step.name!r}; add an edge")
    if structure.region[head] not in (None, structure.region[step.name]):
        raise WorkflowError(
            f"{where}, but {head!r} runs once in each branch; use a function: lambda s: s.all({head!r})"
        )


def _check_answer_step(answer_step: str | None, steps: Sequence[Step]) -> None:
    if answer_step is None:
        return
    step_of = {step.name: step for step in steps}
    _known(answer_step, step_of, "answer_step names step")
    if isinstance(step_of[answer_step], ToolStep):
        raise WorkflowError(f"answer_step {answer_step!r} is a tool step, which has no parsed value")


def check_graded_steps(
    branch_steps: Sequence[str], verdict_step: str | None, llm_steps: Sequence[str]
) -> None:
    """Refuse steps to be graded that call no role.

    Raises:
        WorkflowError: naming the step and those that do.
    """
    for name in branch_steps:
        _known(name, llm_steps, "branch_steps names, as a role's step,")
    if verdict_step is not None:
        _known(verdict_step, llm_steps, "verdict_step names, as a role's step,")


def _known(name: str, known: Iterable[str], what: str) -> None:
    known = list(known)
    if name not in known:
        raise WorkflowError(
            f"{what} {name!r}, which is not declared{did_you_mean(name, known)}; "
            f"declared: {', '.join(known) or 'none'}"
        )


def refuse_duplicates(what: str, names: Iterable[str]) -> None:
    """Raise a WorkflowError for the first name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise WorkflowError(f"{what} {name!r} is declared twice")
        seen.add(name)


def _plain_function(value: Any, what: str) -> None:
    if not isinstance(value, Callable):  # type: ignore[arg-type]
        raise WorkflowError(f"{what} must be a function of the state, got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise WorkflowError(f"{what} must be a plain function, not an async one")
