"""What a workflow reads of its tasks, as far as that can be told without playing it.

Paths (`task.question`) are declarations. Functions are looked at for `state.task["question"]` and, in the
function of a script, for `task["question"]`; what they read in other ways is not seen.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from workflows.graph import Workflow
from workflows.script import AnyWorkflow
from workflows.steps import LlmStep, Step, ToolStep

_DEEPEST: Final = 3  # functions inside functions that are looked at
_BEFORE_IN: Final = 4  # instructions before an `in` that may hold the name that it asks for


@dataclass(frozen=True, slots=True)
class TaskRead:
    """A field that something reads: `path` below the task's inputs, and who reads it, in words."""

    path: tuple[str, ...]
    reader: str


def task_reads(workflow: AnyWorkflow) -> list[TaskRead]:
    """What a workflow reads of a task, each path with its first reader, in the order of the steps."""
    reads: dict[tuple[str, ...], TaskRead] = {}
    for read in _of_graph(workflow) if isinstance(workflow, Workflow) else _of_script(workflow.run):
        reads.setdefault(read.path, read)
    return list(reads.values())


def _of_graph(workflow: Workflow) -> Iterator[TaskRead]:
    for step in workflow.steps:
        for what, source in _sources(step):
            reader = f"step {step.name!r} ({what})"
            if not isinstance(source, str):
                yield from (TaskRead((name,), reader) for name in _names_read(source, None))
            elif source.startswith("task."):
                yield TaskRead(tuple(source.split(".")[1:]), reader)
    for edge in workflow.edges:
        reader = f"edge {edge.source!r} → {edge.target!r} (when)"
        yield from (TaskRead((name,), reader) for name in _names_read(edge.when, None))


def _sources(step: Step) -> Iterator[tuple[str, Any]]:
    if isinstance(step, LlmStep):
        yield from ((f"input {name!r}", source) for name, source in step.inputs.items())
    elif isinstance(step, ToolStep):
        yield "request", step.request
    else:
        yield "compute", step.compute
    yield "for_each", step.for_each


def _of_script(run: Any) -> Iterator[TaskRead]:
    code = _code_of(run)
    if code is None:
        return
    arguments = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    task = arguments[1] if len(arguments) > 1 else None
    for name in _names_read(run, task):
        yield TaskRead((name,), "its function")


def _names_read(function: Any, variable: str | None, depth: int = 0) -> Iterator[str]:
    """Names that a function certainly asks a task for: constants in brackets, not those that it tests for."""
    code = _code_of(function)
    if code is None or depth > _DEEPEST:
        return
    yield from _names_in(code, variable, depth)
    cells = getattr(_unwrapped(function), "__closure__", None) or ()
    for cell in cells:
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(inner, types.FunctionType):
            yield from _names_read(inner, None, depth + 1)


def _names_in(code: types.CodeType, variable: str | None, depth: int) -> Iterator[str]:
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    tested = {
        before.argval
        for place, step in enumerate(steps)
        if step.opname == "CONTAINS_OP"
        for before in steps[max(0, place - _BEFORE_IN) : place]
    }
    for task, name, bracket in zip(steps, steps[1:], steps[2:], strict=False):
        if not (name.opname == "LOAD_CONST" and isinstance(name.argval, str) and name.argval not in tested):
            continue
        if _is_task(task, variable) and _is_bracket(bracket):
            yield name.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and depth < _DEEPEST:
            yield from _names_in(inner, variable, depth + 1)


def _is_task(step: dis.Instruction, variable: str | None) -> bool:
    if variable is not None:
        return step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and step.argval == variable
    return step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "task"


def _is_bracket(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if function is not None and not isinstance(function, types.FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004  (the function itself is wanted)
    return function


def _code_of(function: Any) -> types.CodeType | None:
    code = getattr(_unwrapped(function), "__code__", None)
    return code if isinstance(code, types.CodeType) else None
