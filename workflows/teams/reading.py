"""`reading`: one role copies the sentence that helps, the next sees that sentence alone and answers.

    find ── answer                     hops = 1: tasks like `reading`
    find ── follow ── answer           hops = 2: tasks like `reading_chains`

Each role sees too little to answer alone: the answerer never sees the text, and the finder never answers.
So an answer is right only where what is handed on is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.parsers import Tag
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import State
from workflows.steps import Source
from workflows.teams.single import reply_in

NOTHING: Final = "(nothing)"
_TEXT: Final = ["Max keeps the coats in the red box.", "The red box is in the hall."]
_OTHERS: Final = ["Lisa keeps the cups in the gray bag.", "The gray bag is in the loft."]
_QUESTION: Final = {1: "Where does Max keep the coats?", 2: "In which room are the coats of Max?"}
_ANSWER: Final = {1: "the red box", 2: "the hall"}


def build(hops: int = 1) -> Workflow:
    """Sentences and a question → `<sentence>…</sentence>` (twice with two hops) → `<answer>…</answer>`.

    Args:
        hops: how many sentences are handed on: 1 or 2. With 2, role `follower` sees the first and copies
            the one that continues it.

    Raises:
        WorkflowError: another number of hops.
    """
    if isinstance(hops, bool) or hops not in (1, 2):
        raise WorkflowError(f"option hops must be 1 or 2, got {hops!r}")
    question = "task.question"
    text: dict[str, Source] = {"statements": "task.statements", "question": question}
    first = LlmStep("find", "finder", text)
    second = LlmStep("follow", "follower", {**text, "sentence": lambda state: said(state, "find")})
    copying = [first] if hops == 1 else [first, second]
    names = [step.name for step in copying]
    answer = LlmStep(
        "answer",
        "answerer",
        {"question": question, "sentences": lambda state: [said(state, name) for name in names]},
    )
    steps = [*copying, answer]
    return Workflow(
        "reading",
        roles=[_finder(hops), *([_follower()] if hops == 2 else []), _answerer(hops)],
        steps=steps,
        edges=[Edge(one.name, two.name) for one, two in pairwise(steps)],
        answer_step="answer",
    )


def said(state: State, step: str) -> str:
    """What a step handed on: what its tag holds, else the whole reply."""
    return str(state[step].best or "").strip() or NOTHING


def _finder(hops: int) -> Role:
    shown = [_TEXT[0], _OTHERS[0]] if hops == 1 else [_OTHERS[1], _TEXT[1], _OTHERS[0], _TEXT[0]]
    return Role(
        "finder",
        prompt="{statements}\nQuestion: {question}\nCopy the sentence that helps.\n" + _copy_form(),
        parser=Tag("sentence"),
        demonstrations=(
            ({"statements": shown, "question": _QUESTION[hops]}, f"<sentence>{_TEXT[0]}</sentence>"),
        ),
        max_response_tokens=32,
    )


def _follower() -> Role:
    shown = {
        "statements": [_OTHERS[1], _TEXT[1], _OTHERS[0], _TEXT[0]],
        "question": _QUESTION[2],
        "sentence": _TEXT[0],
    }
    return Role(
        "follower",
        prompt="{statements}\nQuestion: {question}\nKnown: {sentence}\nCopy the sentence that continues it.\n"
        + _copy_form(),
        parser=Tag("sentence"),
        demonstrations=((shown, f"<sentence>{_TEXT[1]}</sentence>"),),
        trim=(Trim("sentence", by="word"),),
        max_response_tokens=32,
    )


def _answerer(hops: int) -> Role:
    shown = {"sentences": _TEXT[:hops], "question": _QUESTION[hops]}
    return Role(
        "answerer",
        prompt=f"{{sentences}}\nQuestion: {{question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=((shown, f"<answer>{_ANSWER[hops]}</answer>"),),
        trim=(Trim("sentences", by="word"),),
        max_response_tokens=24,
    )


def _copy_form() -> str:
    return "Reply: <sentence>the sentence</sentence>"
