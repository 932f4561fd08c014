"""`math`: solve, verify, refine, finalise: a chain of four, each of which sees what those before it said.

    solve → verify → refine → finalise

Nobody decides who speaks: all four always do. Replies go on as they are, tags included. A prompt that
is too long loses words of them: of the oldest reply first, and of each from its start, because the
result stands at its end. The problem and the form of the reply always stay.

A reply that breaks its format still reads: the last filled occurrence of each tag, else "".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workflows.graph import Edge, LlmStep, Workflow
from workflows.parsers import Parser, StrictTags
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import State
from workflows.thinking import (
    AfterThinking,
    Reasoning,
    after_no_thought,
    check_reasoning,
    without_thoughts,
)

STATUSES: Final = ("correct", "incorrect", "uncertain")
ERROR_TYPES: Final = (
    "none", "calculation", "reasoning", "missing_case", "misread_problem", "format", "unclear",
)  # fmt: skip

_NO_REPLY: Final = "(no reply)"
_PROBLEM: Final = "Sam buys 3 pens for 4 dollars each. How much does he pay?"
_SOLVED: Final = "<SOLUTION>3 * 4 = 7</SOLUTION>\n<ANSWER>7</ANSWER>"
_VERIFIED: Final = (
    "<STATUS>incorrect</STATUS>\n<ERROR_TYPE>calculation</ERROR_TYPE>\n<FEEDBACK>3 * 4 is 12.</FEEDBACK>"
)
_REFINED: Final = "<REFINED_SOLUTION>3 * 4 = 12</REFINED_SOLUTION>\n<ANSWER>12</ANSWER>"
_FINAL: Final = "<FINAL_SOLUTION>3 * 4 = 12</FINAL_SOLUTION>\n<FINAL_ANSWER>12</FINAL_ANSWER>"


def build(reasoning: Reasoning = False) -> Workflow:
    """The workflow.

    Args:
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one: a reply that closes none is then a thought.

    Raises:
        WorkflowError: an option of the wrong kind.
    """
    check_reasoning(reasoning)

    def said(step: str) -> Callable[[State], str]:
        def text(state: State) -> str:
            reply = state[step].text
            return without_thoughts(reply, reasoning).strip() or _NO_REPLY

        return text

    problem, solution, feedback, refined = "task.problem", said("solve"), said("verify"), said("refine")
    return Workflow(
        "math",
        roles=_roles(reasoning),
        steps=[
            LlmStep("solve", "solver", {"problem": problem}),
            LlmStep("verify", "verifier", {"problem": problem, "solution": solution}),
            LlmStep("refine", "refiner", {"problem": problem, "solution": solution, "feedback": feedback}),
            LlmStep(
                "finalise",
                "finaliser",
                {"problem": problem, "solution": solution, "feedback": feedback, "refined": refined},
            ),
        ],
        edges=[Edge("solve", "verify"), Edge("verify", "refine"), Edge("refine", "finalise")],
        answer_step="finalise",
    )


def _roles(reasoning: Reasoning) -> list[Role]:
    def role(
        name: str, ask: str, tags: tuple[str, ...], shown: dict[str, str], reply: str, **rules: Any
    ) -> Role:
        parser: Parser = StrictTags(tags, lenient="last", missing="empty", **rules)
        return Role(
            name,
            prompt=f"Problem: {{problem}}\n{ask}",
            parser=AfterThinking(parser, reasoning == "opened") if reasoning else parser,
            demonstrations=(({"problem": _PROBLEM} | shown, after_no_thought(reply, reasoning)),),
            trim=tuple(Trim(name, drop="first", by="word") for name in shown),
            max_response_tokens=512,
        )

    solution, feedback, refined = {"solution": _SOLVED}, {"feedback": _VERIFIED}, {"refined": _REFINED}
    return [
        role(
            "solver",
            "Reply:\n<SOLUTION>your steps</SOLUTION>\n<ANSWER>the result alone</ANSWER>",
            ("SOLUTION", "ANSWER"),
            {},
            "<SOLUTION>3 * 4 = 12</SOLUTION>\n<ANSWER>12</ANSWER>",
        ),
        role(
            "verifier",
            "Solution:\n{solution}\nIs it correct?\n"
            f"STATUS: {', '.join(STATUSES)}\nERROR_TYPE: {', '.join(ERROR_TYPES)}\n"
            "Reply:\n<STATUS>one word</STATUS>\n<ERROR_TYPE>one word</ERROR_TYPE>\n"
            "<FEEDBACK>what is wrong</FEEDBACK>",
            ("STATUS", "ERROR_TYPE", "FEEDBACK"),
            solution,
            _VERIFIED,
            choices={"STATUS": STATUSES, "ERROR_TYPE": ERROR_TYPES},
        ),
        role(
            "refiner",
            "Solution:\n{solution}\nCheck:\n{feedback}\nCorrect the solution. Reply:\n"
            "<REFINED_SOLUTION>your steps</REFINED_SOLUTION>\n<ANSWER>the result alone</ANSWER>",
            ("REFINED_SOLUTION", "ANSWER"),
            solution | feedback,
            _REFINED,
        ),
        role(
            "finaliser",
            "Solution:\n{solution}\nCheck:\n{feedback}\nCorrected:\n{refined}\nGive the result. Reply:\n"
            "<FINAL_SOLUTION>the steps</FINAL_SOLUTION>\n<FINAL_ANSWER>the result alone</FINAL_ANSWER>",
            ("FINAL_SOLUTION", "FINAL_ANSWER"),
            solution | feedback | refined,
            _FINAL,
        ),
    ]
