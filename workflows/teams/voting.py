"""`voting`: several answer the same task at the same time, one sees all answers and gives the team's.

    generate 0 ─┐
    generate 1 ─┼─ aggregate
    generate 2 ─┘

With `voters = 3` the generators are copies of one role, in branches 0, 1 and 2, told apart by their seeds.
With `voters = ["voter_a", "voter_b"]` each is a role of its own, which may have its own model; each speaks in
a step of its own name. How answers are read where they break their form: `workflows.teams.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Source, Workflow
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import State
from workflows.steps import Step
from workflows.teams.kinds import TaskKind, check_count, numbered, task_kind
from workflows.thinking import Reasoning


def build(task: str = "questions", voters: int | Sequence[str] = 3, reasoning: Reasoning = False) -> Workflow:
    """The workflow.

    Args:
        task: "questions", "reading", "mathematics" or "code": what prompts, answers and their grading are.
        voters: how many copies of the role `generator` answer, or the names of the roles that do.
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    kind = task_kind(task, reasoning)
    steps: list[Step]
    if isinstance(voters, int):
        check_count("voters", voters, 2)
        names = ["generate"]
        roles = [generator(kind, "generator")]
        steps = [LlmStep("generate", "generator", kind.inputs, for_each=_copies(voters))]
    else:
        names = _named(voters)
        roles = [generator(kind, name) for name in names]
        steps = [LlmStep(name, name, kind.inputs) for name in names]

    def answers(state: State) -> list[str]:
        return numbered([kind.answer(output) for name in names for output in state.all(name)])

    seen: dict[str, Source] = {**kind.inputs, "answers": answers}
    steps.append(LlmStep("aggregate", "aggregator", seen))
    return Workflow(
        "voting",
        roles=[*roles, chooser(kind, "aggregator", "answers", "Which answer is right?")],
        steps=steps,
        edges=[Edge(name, "aggregate") for name in names],
        start=names,
        answer_step="aggregate",
        branch_steps=names,
        task=kind.graded_as,
    )


def generator(kind: TaskKind, name: str, **more: Any) -> Role:
    """A role that solves the task alone."""
    return Role(
        name,
        prompt=kind.statement + kind.form,
        parser=kind.parser,
        demonstrations=((kind.shown, kind.right_reply),),
        max_response_tokens=kind.max_response_tokens,
        **more,
    )


def chooser(kind: TaskKind, name: str, seen: str, ask: str) -> Role:
    """A role that sees answers in variable `seen` and gives one itself."""
    shown = {**kind.shown, seen: numbered([kind.right, kind.wrong])}
    return Role(
        name,
        prompt=f"{kind.statement}{{{seen}}}\n{ask}\n{kind.form}",
        parser=kind.parser,
        demonstrations=((shown, kind.right_reply),),
        trim=(Trim(seen, by="word"),),
        max_response_tokens=kind.max_response_tokens,
    )


def _copies(number: int) -> Callable[[State], list[int]]:
    def copies(state: State) -> list[int]:
        return list(range(number))

    return copies


def _named(voters: Sequence[str]) -> list[str]:
    names = list(voters) if isinstance(voters, list | tuple) else []
    if len(names) < 2 or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise WorkflowError(
            "option voters must be a whole number of at least 2, or a list of at least two roles' names "
            f'(letters, digits and "_"), got {voters!r}'
        )
    if taken := [name for name in names if name in ("aggregate", "aggregator") or names.count(name) > 1]:
        raise WorkflowError(
            f"option voters names {taken[0]!r}, which is taken; give each voter a name of its own"
        )
    return names
