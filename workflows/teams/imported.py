"""`imported`: a team that another program played. Its traces are shown and scored; it plays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from workflows.errors import UsageError, WorkflowError
from workflows.parsers import Raw
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.team import Team

USE: Final = "workflows.teams.imported:build"  # as settings name it


class _PlayedElsewhere:
    """A tool of another program: it is never called here."""

    deterministic = False

    def __call__(self, request: Any) -> Any:
        raise WorkflowError("a tool of an imported trace can't be called")


async def _play(team: Team, task: Mapping[str, Any]) -> None:
    check_playable(USE)


def check_playable(use: str) -> None:
    """Refuse to play what only traces are at hand of.

    Raises:
        UsageError: `use` names this workflow.
    """
    if use == USE:
        raise UsageError(
            "workflow.use: these are the settings of imported traces, whose team only another program can "
            "play; show, report, replay, ablate or imitate the stored episodes, or name a workflow"
        )


def build(
    roles: Sequence[str],
    tools: Sequence[str] = (),
    steps: Mapping[str, str] | None = None,
    answer_step: str | None = None,
    branch_steps: Iterable[str] = (),
    verdict_step: str | None = None,
    task: str | None = None,
) -> ScriptWorkflow:
    """A team of these roles and tools, as `trace import` declares it.

    Args:
        roles, tools: names of those that act in the traces.
        steps: step → role or tool, "" for what a workflow computed; default: each role and tool is a step.
        answer_step: the step whose last reply is an episode's answer.
        branch_steps, verdict_step, task: as of `workflows.graph.Workflow`.

    Raises:
        WorkflowError: as `workflows.script.ScriptWorkflow`.
    """
    return ScriptWorkflow(
        "imported",
        roles=[Role(name, prompt="{task}", parser=Raw()) for name in roles],
        run=_play,
        tools={name: _PlayedElsewhere() for name in tools},
        steps={step: actor or None for step, actor in steps.items()} if steps is not None else None,
        answer_step=answer_step,
        branch_steps=branch_steps,
        verdict_step=verdict_step,
        task=task,
    )
