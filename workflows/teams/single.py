"""`single`: one role, one call. The baseline that a team has to beat."""

from __future__ import annotations

from workflows.errors import WorkflowError
from workflows.graph import LlmStep, Workflow
from workflows.parsers import Tag
from workflows.prompts import parse_template
from workflows.roles import Role
from workflows.teams.kinds import task_kind
from workflows.thinking import Reasoning


def reply_in(tag: str) -> str:
    """The last line of a prompt: the form of the reply, shown rather than described.

    SmolLM2-135M at temperature 1, after one demonstration, keeps the format in 76 % of its replies to a
    bare question and 65 % with passages; where a sentence asked for the tags it was 46 % and 22 % (96
    replies each, shipped questions of the train split).
    """
    return f"Reply: <{tag}>your answer</{tag}>"


def build(
    prompt: str | None = None,
    answer_tag: str = "answer",
    max_response_tokens: int | None = None,
    task: str | None = None,
    reasoning: Reasoning = False,
) -> Workflow:
    """Question → `<answer>…</answer>`.

    Args:
        task: "questions", "reading", "mathematics" or "code": prompt, answer and grading are those of
            the teams `voting`, `evaluate_optimise` and `orchestrate_workers`, of which this is the control.
        reasoning: with `task`, as of these teams.
        prompt: template of the message; its variables are fields of the task's inputs. It should ask for
            the answer inside the tag. One demonstration is shown where it uses `{question}` only.
        answer_tag: the tag that holds the answer.
        max_response_tokens: limit of the reply; the settings of the role may change it.

    Raises:
        WorkflowError: an option of the wrong kind, or a prompt that is not a template or uses no input.
    """
    if task is not None:
        return _control(task, prompt, answer_tag, max_response_tokens, reasoning)
    if reasoning:
        raise WorkflowError("option reasoning of `single` needs option task")
    if not isinstance(answer_tag, str) or not (prompt is None or isinstance(prompt, str)):
        raise WorkflowError("options prompt and answer_tag are texts")
    text = f"Question: {{question}}\n{reply_in(answer_tag)}" if prompt is None else prompt
    variables = parse_template(text).variables
    if not variables:
        raise WorkflowError("option prompt uses no field of the task; write for example {question}")
    shown = variables == ("question",)
    solver = Role(
        "solver",
        prompt=text,
        parser=Tag(answer_tag),
        demonstrations=(
            ({"question": "How many legs does a spider have?"}, f"<{answer_tag}>eight</{answer_tag}>"),
        )
        if shown
        else (),
        max_response_tokens=48 if max_response_tokens is None else max_response_tokens,
    )
    return Workflow(
        "single",
        roles=[solver],
        steps=[LlmStep("solve", "solver", {name: f"task.{name}" for name in variables})],
        answer_step="solve",
    )


def _control(
    task: str, prompt: str | None, answer_tag: str, max_response_tokens: int | None, reasoning: Reasoning
) -> Workflow:
    """One role that does what each branch of a team does.

    Raises:
        WorkflowError: an unknown task, or an option that the task decides.
    """
    kind = task_kind(task, reasoning)
    if prompt is not None or answer_tag != "answer":
        raise WorkflowError("option task decides prompt and answer_tag; leave these two out, or task")
    solver = Role(
        "solver",
        prompt=kind.statement + kind.form,
        parser=kind.parser,
        demonstrations=((kind.shown, kind.right_reply),),
        max_response_tokens=max_response_tokens or kind.max_response_tokens,
    )
    return Workflow(
        "single",
        roles=[solver],
        steps=[LlmStep("solve", "solver", kind.inputs)],
        answer_step="solve",
        branch_steps=["solve"],
        task=kind.graded_as,
    )
