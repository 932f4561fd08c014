"""A workflow for the eye: plain lines for a terminal, Mermaid for a page, plain values for other drawings."""

from __future__ import annotations

from typing import Any

from workflows.graph import Workflow
from workflows.plugins import module_of, name_of
from workflows.script import AnyWorkflow, ScriptWorkflow
from workflows.steps import ControlStep, Edge, LlmStep, Step
from workflows.vocabulary import Event


def text_lines(workflow: AnyWorkflow) -> list[str]:
    """One line for each step, in running order: what it is and what it waits for.

    When the steps of an async function run is known to the function alone: it is named instead.
    """
    if isinstance(workflow, ScriptWorkflow):
        head = f"{_function(workflow)} decides in Python which step comes next:"
        return [head, *_script_lines(workflow), *_spawning_lines(workflow)]
    edges = workflow.edges
    rows = []
    for name in workflow.structure.order:
        waits = [_after(edges[i]) for i in workflow.structure.incoming[name]]
        after = f"after {', '.join(waits)}" if waits else "starts"
        repeats = [_again(e) for e in edges if e.limit is not None and e.target == name]
        rows.append((name, _what(workflow, workflow.step_of[name]), "; ".join([after, *repeats])))
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return [f"{name:<{widths[0]}}  {what:<{widths[1]}}  {after}" for name, what, after in rows]


def _spawning_lines(workflow: ScriptWorkflow) -> list[str]:
    """What plays may spawn, where they may."""
    if (spawning := workflow.spawning) is None:
        return []
    pace = spawning.pace
    rates = ""
    if pace.order == "modelled":
        rates = (
            f" ({pace.prompt_tokens_per_second:g} prompt and {pace.response_tokens_per_second:g} response "
            f"tokens/s, {pace.tool_seconds:g} s a tool)"
        )
    return [
        f"plays may spawn others: depth {spawning.max_depth}, {spawning.max_width} at a time, first by "
        f"{pace.order} order{rates}"
    ]


def mermaid(workflow: AnyWorkflow) -> str:
    """A Mermaid flowchart: boxes are roles, slanted boxes tools, hexagons control steps.

    Dotted arrows have a condition; a step that runs in branches has a double frame. An async function is
    a circle that its steps hang on.
    """
    if isinstance(workflow, ScriptWorkflow):
        return _script_mermaid(workflow)
    lines = ["flowchart TD"]
    for step in workflow.steps:
        label = f'"{step.name}<br/>{_what(workflow, step)}"'
        if workflow.structure.region[step.name] is not None:
            shape = f"[[{label}]]"
        elif isinstance(step, LlmStep):
            shape = f"[{label}]"
        else:
            shape = f"{{{{{label}}}}}" if isinstance(step, ControlStep) else f"[/{label}/]"
        lines.append(f"    step_{step.name}{shape}")
    for edge in workflow.edges:
        labels = _labels(edge)
        arrow = "-.->" if edge.when else "-->"
        label = f'|"{", ".join(labels)}"|' if labels else ""
        lines.append(f"    step_{edge.source} {arrow}{label} step_{edge.target}")
    return "\n".join(lines) + "\n"


def drawing(workflow: AnyWorkflow) -> dict[str, Any]:
    """The graph as JSON values, for drawing it later and elsewhere, without the workflow's own code.

    `steps` in running order, each with `name`, `what` (a line), `kind` (an `Event`) and
    `branches`; `edges` with `source`, `target`, `label`, `conditional` and `back` (it leads back).
    An async function has no edges, and `function` says its name.
    """
    if isinstance(workflow, ScriptWorkflow):
        kinds = {**dict.fromkeys(workflow.roles, Event.LLM), **dict.fromkeys(workflow.tools, Event.TOOL)}
        steps = [
            {
                "name": step,
                "what": _actor(workflow, step),
                "kind": (kinds[actor] if actor else Event.CONTROL).value,
                "branches": False,
            }
            for step, actor in workflow.steps.items()
        ]
        return {"name": workflow.name, "function": _function(workflow), "steps": steps, "edges": []}
    steps = [_drawn_step(workflow, workflow.step_of[name]) for name in workflow.structure.order]
    edges = [
        {
            "source": edge.source,
            "target": edge.target,
            "label": ", ".join(_labels(edge)),
            "conditional": edge.when is not None,
            "back": edge.limit is not None,
        }
        for edge in workflow.edges
    ]
    return {"name": workflow.name, "function": None, "steps": steps, "edges": edges}


def _drawn_step(workflow: Workflow, step: Step) -> dict[str, Any]:
    branches = workflow.structure.region[step.name] is not None
    return {"name": step.name, "what": _what(workflow, step), "kind": step.event.value, "branches": branches}


def _labels(edge: Edge) -> list[str]:
    labels = [_condition(edge)] if edge.when else []
    return labels + ([f"again, at most {edge.limit}×"] if edge.limit is not None else [])


def _what(workflow: Workflow, step: Step) -> str:
    if isinstance(step, LlmStep):
        what = f"role {step.role}"
    else:
        what = "control" if isinstance(step, ControlStep) else f"tool {step.tool}"
    if step.for_each is not None:
        what += ", for each item"
    elif step.same_branch:
        what += ", in each branch"
    return f"{what}, answer" if step.name == workflow.answer_step else what


def _after(edge: Edge) -> str:
    return f"{edge.source} if {_condition(edge)}" if edge.when else edge.source


def _again(edge: Edge) -> str:
    condition = f" if {_condition(edge)}" if edge.when else ""
    return f"again after {edge.source}{condition}, at most {edge.limit}×"


def _condition(edge: Edge) -> str:
    name = name_of(edge.when).rpartition(".")[2]
    return "a condition holds" if name == "<lambda>" else name.strip("_").replace("_", " ")


def _function(workflow: ScriptWorkflow) -> str:
    return f"{module_of(workflow.run)}:{name_of(workflow.run)}"


def _actor(workflow: ScriptWorkflow, step: str) -> str:
    actor = workflow.steps[step]
    what = "note" if actor is None else f"{'role' if actor in workflow.roles else 'tool'} {actor}"
    return f"{what}, answer" if step == workflow.answer_step else what


def _script_lines(workflow: ScriptWorkflow) -> list[str]:
    width = max(map(len, workflow.steps))
    return [f"{step:<{width}}  {_actor(workflow, step)}" for step in workflow.steps]


def _script_mermaid(workflow: ScriptWorkflow) -> str:
    lines = ["flowchart TD", f'    function(("{_function(workflow)}"))']
    for step, actor in workflow.steps.items():
        label = f'"{step}<br/>{_actor(workflow, step)}"'
        if actor is None:
            shape = f"{{{{{label}}}}}"
        else:
            shape = f"[{label}]" if actor in workflow.roles else f"[/{label}/]"
        lines.append(f"    function -.-> step_{step}{shape}")
    return "\n".join(lines) + "\n"
