"""A workflow whose tool is down for some questions for as long as a file is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflows.errors import InfraError
from workflows.graph import Edge, LlmStep, ToolStep, Workflow
from workflows.parsers import Tag
from workflows.roles import Role


class Lookup:
    """Answers nothing, or is down: the file's text is a digit, the share in tenths of questions that fail."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def __call__(self, request: Any) -> Any:
        if self.file.exists() and sum(str(request).encode()) % 10 < int(self.file.read_text()):
            raise InfraError("the index is down")
        return "nothing"


def build(file: str) -> Workflow:
    """Look up, then answer. `file` stands for an outage."""
    solver = Role("solver", "Question: {question}\nReply: <answer>your answer</answer>", Tag("answer"))
    return Workflow(
        "outage",
        roles=[solver],
        steps=[
            ToolStep("look", "lookup", lambda state: state.task["question"]),
            LlmStep("solve", "solver", {"question": "task.question"}),
        ],
        edges=[Edge("look", "solve")],
        tools={"lookup": Lookup(file)},
        answer_step="solve",
    )
