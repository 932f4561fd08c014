"""Workflows by name or import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from workflows.errors import UsageError, WorkflowError
from workflows.graph import Workflow
from workflows.plugins import load_object, load_plugin
from workflows.script import AnyWorkflow, ScriptWorkflow

BUILTIN_WORKFLOWS: Final = {
    "single": "workflows.teams.single:build",
    "qa_decompose": "workflows.teams.qa_decompose:build",
    "signal": "workflows.teams.signal:build",
    "qa_rewrite": "workflows.teams.qa_rewrite:build",
    "qa_summarise": "workflows.teams.qa_summarise:build",
    "qa_select": "workflows.teams.qa_select:build",
    "mask": "workflows.teams.mask:build",
    "code": "workflows.teams.code:build",
    "math": "workflows.teams.math:build",
    "debate": "workflows.teams.debate:build",
    "voting": "workflows.teams.voting:build",
    "evaluate_optimise": "workflows.teams.evaluate_optimise:build",
    "orchestrate_workers": "workflows.teams.orchestrate_workers:build",
    "orchestrate": "workflows.teams.orchestrate:build",
    "reading": "workflows.teams.reading:build",
}


def load_workflow(use: str, options: Mapping[str, Any], returns: str = "last") -> AnyWorkflow:
    """The workflow that `use` names: a built-in, or `package.module:build`.

    Args:
        returns: which round's answer it gives: see `workflows.graph.RETURNS`.

    Raises:
        UsageError: as `load_plugin`, it does not build a `Workflow` or a `ScriptWorkflow`, or `returns` has
            no effect with it.
    """
    workflow = load_plugin(use, options, BUILTIN_WORKFLOWS, "workflow")
    if not isinstance(workflow, Workflow | ScriptWorkflow):
        raise UsageError(
            f"workflow {use!r} builds a {type(workflow).__name__}; it must return a workflows.graph.Workflow "
            "or a workflows.script.ScriptWorkflow"
        )
    if returns == "last":
        return workflow
    if isinstance(workflow, ScriptWorkflow):
        raise UsageError(
            f'workflow.returns = "{returns}" has no effect: workflow {use!r} is an async function, which '
            "says itself what its answer is; remove it"
        )
    try:
        return workflow.returning(returns)
    except WorkflowError as error:
        raise UsageError(f"workflow.{error}") from None


def workflow_takes(use: str, option: str) -> bool:
    """Whether the workflow that `use` names has such an option. False for what can't be loaded."""
    try:
        return option in inspect.signature(load_object(BUILTIN_WORKFLOWS.get(use, use))).parameters
    except (UsageError, TypeError, ValueError):
        return False
