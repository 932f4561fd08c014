"""`single`: one role, one call. The baseline that a team has to beat."""

from __future__ import annotations

from workflows.errors import WorkflowError
from workflows.graph import LlmStep, Workflow
from workflows.parsers import Tag
from workflows.prompts import parse_template
from workflows.roles import Role


def reply_in(tag: str) -> str:
    """The last line of a prompt: the form of the reply, shown rather than described.

    SmolLM2-135M at temperature 1, after one demonstration, keeps the format in 76 % of its replies to a
    bare question and 65 % with passages; where a sentence asked for the tags it was 46 % and 22 % (96
    replies each, shipped questions of the train split).
    """
    return f"Reply: <{tag}>your answer</{tag}>"


def build(prompt: str | None = None, answer_tag: str = "answer", max_response_tokens: int = 48) -> Workflow:
    """Question → `<answer>…</answer>`.

    Args:
        prompt: template of the message; its variables are fields of the task's inputs. It should ask for
            the answer inside the tag. One demonstration is shown where it uses `{question}` only.
        answer_tag: the tag that holds the answer.
        max_response_tokens: limit of the reply; the settings of the role may change it.

    Raises:
        WorkflowError: an option of the wrong kind, or a prompt that is not a template or uses no input.
    """
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
        max_response_tokens=max_response_tokens,
    )
    return Workflow(
        "single",
        roles=[solver],
        steps=[LlmStep("solve", "solver", {name: f"task.{name}" for name in variables})],
        answer_step="solve",
    )
