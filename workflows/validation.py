"""Everything that can be wrong with a declared workflow and can be known before it is played."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workflows.errors import WorkflowError, did_you_mean
from workflows.graph import ControlStep, LlmStep, Step, ToolStep, Workflow
from workflows.structure import Structure

_RESERVED = ("task", "item")  # heads of input paths


def check_workflow(workflow: Workflow) -> None:
    """Refuse a workflow that can't be played as declared.

    Raises:
        WorkflowError: one message for the first fault found.
    """
    try:
        _check_names(workflow)
        _check_edges(workflow)
        structure = workflow.structure  # raises for cycles and for limits on edges that lead nowhere back
        _check_start(workflow, structure)
        _check_branches(workflow, structure)
        _check_loops(workflow, structure)
        for step in workflow.steps:
            _check_step(workflow, structure, step)
        _check_answer_step(workflow)
    except WorkflowError as error:
        raise WorkflowError(f"workflow {workflow.name!r}: {error}") from None


def _check_names(workflow: Workflow) -> None:
    if not workflow.steps:
        raise WorkflowError("it has no steps")
    refuse_duplicates("step", (step.name for step in workflow.steps))
    for step in workflow.steps:
        if not step.name.isidentifier() or step.name in _RESERVED:
            raise WorkflowError(
                f"a step's name is letters, digits and '_', and not 'task' or 'item'; got {step.name!r}"
            )
        if isinstance(step, LlmStep):
            _known(step.role, workflow.roles, f"step {step.name!r} names role")
        if isinstance(step, ToolStep):
            _known(step.tool, workflow.tools, f"step {step.name!r} names tool")
    used_roles = {step.role for step in workflow.steps if isinstance(step, LlmStep)}
    used_tools = {step.tool for step in workflow.steps if isinstance(step, ToolStep)}
    if unused := [name for name in workflow.roles if name not in used_roles]:
        raise WorkflowError(f"role {unused[0]!r} is used by no step; remove it or name it in an LlmStep")
    if unused := [name for name in workflow.tools if name not in used_tools]:
        raise WorkflowError(f"tool {unused[0]!r} is used by no step; remove it or name it in a ToolStep")
    check_tools(workflow.tools)


def check_tools(tools: Mapping[str, Any]) -> None:
    """Refuse a tool that can't be called, a class above all."""
    for name, tool in tools.items():
        if not callable(tool) or isinstance(tool, type):
            raise WorkflowError(
                f"tool {name!r} is {tool!r}; give an object that can be called: tool(request)"
            )


def _check_edges(workflow: Workflow) -> None:
    for edge in workflow.edges:
        where = f"edge {edge.source!r} → {edge.target!r}"
        for name in (edge.source, edge.target):
            _known(name, workflow.step_of, f"{where} names step")
        if edge.when is not None:
            _plain_function(edge.when, f"{where}: when")
        if edge.limit is not None and (not isinstance(edge.limit, int) or edge.limit < 1):
            raise WorkflowError(f"{where}: limit must be a whole number of at least 1, got {edge.limit!r}")
    refuse_duplicates("edge", (f"{e.source} → {e.target}" for e in workflow.edges))


def _check_start(workflow: Workflow, structure: Structure) -> None:
    for name in workflow.start:
        _known(name, workflow.step_of, "start names step")
        if structure.incoming[name]:
            raise WorkflowError(
                f"there is no start: step {name!r} should start, but an edge leads to it; "
                "list the starting step first, or name it in start"
            )
    for name in structure.order:
        if not structure.incoming[name] and name not in workflow.start:
            raise WorkflowError(
                f"step {name!r} can't be reached: no edge leads to it; add one, or name it in start"
            )


def _check_branches(workflow: Workflow, structure: Structure) -> None:
    for step in workflow.steps:
        regions = {
            structure.region[workflow.edges[i].source]: workflow.edges[i].source
            for i in structure.incoming[step.name]
        }
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


def _check_loops(workflow: Workflow, structure: Structure) -> None:
    for loop in structure.loops:
        scopes = {structure.region[workflow.edges[i].source] for i in loop.back}
        target_scope = structure.region[loop.target]
        # a loop that starts at a for_each step and ends after its join spreads it anew in each round
        fits = target_scope in scopes or (scopes == {None} and target_scope == loop.target)
        if len(scopes) > 1 or not fits:
            source = workflow.edges[loop.back[-1]].source
            raise WorkflowError(
                f"edge {source!r} → {loop.target!r} leads back across a for_each; "
                "a loop lies within one branch or outside all of them"
            )
        for index in (i for name in loop.body for i in structure.incoming[name]):
            edge = workflow.edges[index]
            if edge.source not in loop.body and edge.target != loop.target:
                raise WorkflowError(
                    f"edge {edge.source!r} → {edge.target!r} enters the loop of {loop.target!r} from the "
                    f"side; a loop is entered at its target: lead the edge to {loop.target!r}"
                )
        if entered := [n for n in workflow.start if n in loop.body and n != loop.target]:
            raise WorkflowError(f"step {entered[0]!r} starts inside the loop of {loop.target!r}")


def _check_step(workflow: Workflow, structure: Structure, step: Step) -> None:
    where = f"step {step.name!r}"
    if isinstance(step, ToolStep):
        _plain_function(step.request, f"{where}: request")
    elif isinstance(step, ControlStep):
        _plain_function(step.compute, f"{where}: compute")
    else:
        wanted = workflow.roles[step.role].template.variables
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
                _check_path(workflow, structure, step, source)
            else:
                _plain_function(source, f"{where}: input {name!r}")


def _check_path(workflow: Workflow, structure: Structure, step: Step, path: str) -> None:
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
    _known(head, [*_RESERVED, *workflow.step_of], f"{where} starts with")
    if not structure.sees(step.name, head):
        raise WorkflowError(f"{where}, but {head!r} is not before {step.name!r}; add an edge")
    if structure.region[head] not in (None, structure.region[step.name]):
        raise WorkflowError(
            f"{where}, but {head!r} runs once in each branch; use a function: lambda s: s.all({head!r})"
        )


def _check_answer_step(workflow: Workflow) -> None:
    if workflow.answer_step is None:
        return
    _known(workflow.answer_step, workflow.step_of, "answer_step names step")
    if isinstance(workflow.step_of[workflow.answer_step], ToolStep):
        raise WorkflowError(f"answer_step {workflow.answer_step!r} is a tool step, which has no parsed value")


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
