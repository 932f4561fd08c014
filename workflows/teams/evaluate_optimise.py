"""`evaluate_optimise`: draft, judge, improve, until the judge is satisfied.

    generate → evaluate ─(not satisfied, a round is left)→ generate → …

The evaluator says a verdict, how sure it is, and feedback. The last draft is judged too, so every draft has
a verdict. The episode ends as `finished` with a satisfied evaluator, else as `loop_limit`.

With `conversations = true` generator and evaluator each keep a conversation of their own: the task stands in
its first message, and feedback, or a new draft, is the next message of the user. Without, each prompt is new
and shows the last draft and the feedback on it. A conversation that is too long for the model loses its
oldest replies, never the task.

With `learned_stop = true` a role `stopper` sees each judged draft and decides whether there is another one,
whatever the evaluator's verdict; the evaluator's feedback then still goes into the next draft.

A reply of the evaluator that breaks its form reads as the last filled occurrence of each tag. One without a
readable verdict is not satisfied; feedback that can't be read is the reply's text, or that there was none.
"""

from __future__ import annotations

from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Source, Workflow
from workflows.parsers import StrictTags
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import Output, State
from workflows.teams.kinds import TaskKind, check_count, task_kind
from workflows.teams.qa_passages import check_flags
from workflows.teams.stopping import HALT, STOPPER, goes_on, stopper
from workflows.teams.voting import generator
from workflows.thinking import Reasoning, without_thoughts

VERDICTS: Final = ("satisfied", "unsatisfied")
CONFIDENCES: Final = ("low", "medium", "high")
NO_FEEDBACK: Final = "(no feedback)"
_NONE: Final = "none"
_FORM: Final = (
    f"verdict: {', '.join(VERDICTS)}\nconfidence: {', '.join(CONFIDENCES)}\n"
    "Reply: <verdict>one word</verdict>\n<confidence>one word</confidence>\n"
    "<feedback>what to change</feedback>"
)


def build(
    task: str = "questions",
    max_rounds: int = 3,
    conversations: bool = False,
    reasoning: Reasoning = False,
    learned_stop: bool = False,
) -> Workflow:
    """The workflow.

    Args:
        task: "questions", "reading", "mathematics" or "code": what prompts, answers and their grading are.
        max_rounds: drafts of an episode, at most.
        conversations: generator and evaluator see their own earlier turns as a chat.
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one.
        learned_stop: a role `stopper` ends the rounds, and not a satisfied evaluator.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    kind = task_kind(task, reasoning)
    check_count("max_rounds", max_rounds, 1)
    check_flags(conversations=conversations, learned_stop=learned_stop)
    if learned_stop and max_rounds < 2:
        raise WorkflowError("option learned_stop has no effect with max_rounds = 1: there is nothing to stop")

    def draft(state: State) -> str:
        return kind.answer(state["generate"])

    def last_feedback(state: State) -> str:
        return feedback(state["evaluate"], reasoning) if state.ran("evaluate") else _NONE

    def last_draft(state: State) -> str:
        return draft(state) if state.ran("generate") else _NONE

    drafting: dict[str, Source] = {**kind.inputs, "feedback": last_feedback}
    if not conversations:
        drafting["draft"] = last_draft
    edges = [Edge("generate", "evaluate")]
    roles = _talking(kind) if conversations else _forgetful(kind)
    steps = [
        LlmStep("generate", "generator", drafting),
        LlmStep("evaluate", "evaluator", {**kind.only_stated(kind.inputs), "draft": draft}),
    ]
    if learned_stop:
        said = {"draft": draft, "verdict": last_verdict, "feedback": last_feedback}
        roles.append(
            stopper(
                f"{kind.statement}Answer: {{draft}}\nVerdict: {{verdict}}\nFeedback: {{feedback}}\n",
                _trims("feedback", "draft"),
            )
        )
        steps.append(LlmStep(HALT, STOPPER, {**kind.only_stated(kind.inputs), **said}))
        edges.append(Edge("evaluate", HALT, when=lambda state: state.round + 1 < max_rounds))
        edges.append(Edge(HALT, "generate", when=lambda s: goes_on(s[HALT]), limit=max_rounds - 1))
    elif max_rounds > 1:
        edges.append(Edge("evaluate", "generate", when=not_satisfied, limit=max_rounds - 1))
    return Workflow(
        "evaluate_optimise",
        roles=roles,
        steps=steps,
        edges=edges,
        answer_step="generate",
        branch_steps=["generate"],
        verdict_step="evaluate",
        task=kind.graded_as,
    )


def not_satisfied(state: State) -> bool:
    """Whether the evaluator wants another draft."""
    return (state["evaluate"].best or {}).get("verdict") != "satisfied"


def last_verdict(state: State) -> str:
    """What the evaluator thinks of the last draft."""
    return (state["evaluate"].best or {}).get("verdict") or _NONE


def feedback(output: Output, reasoning: Reasoning = False) -> str:
    """What the evaluator wants changed."""
    read = (output.best or {}).get("feedback") or without_thoughts(output.text, reasoning)
    return str(read).strip() or NO_FEEDBACK


def _forgetful(kind: TaskKind) -> list[Role]:
    first = {**kind.shown, "draft": _NONE, "feedback": _NONE}
    later = {**kind.shown, "draft": kind.wrong, "feedback": "This is wrong."}
    drafter = Role(
        "generator",
        prompt=f"{kind.statement}Last answer: {{draft}}\nFeedback: {{feedback}}\n{kind.form}",
        parser=kind.parser,
        demonstrations=((first, kind.wrong_reply), (later, kind.right_reply)),
        trim=_trims("draft", "feedback"),
        max_response_tokens=kind.max_response_tokens,
    )
    return [drafter, _evaluator(kind)]


def _talking(kind: TaskKind) -> list[Role]:
    drafter = generator(
        kind,
        "generator",
        conversation=True,
        when_full="drop_oldest",
        follow_up=f"Feedback: {{feedback}}\n{kind.reminder}{kind.form}",
        trim=_trims("feedback"),
    )
    later = f"New answer: {{draft}}\nIs it right?\n{_FORM}"
    return [drafter, _evaluator(kind, conversation=True, follow_up=later, when_full="drop_oldest")]


def _evaluator(kind: TaskKind, **more: Any) -> Role:
    shown = {**kind.only_stated(kind.shown), "draft": kind.wrong}
    return Role(
        "evaluator",
        prompt=f"{kind.statement}Answer: {{draft}}\nIs it right?\n{_FORM}",
        parser=kind.reads(
            StrictTags(
                ("verdict", "confidence", "feedback"),
                choices={"verdict": VERDICTS, "confidence": CONFIDENCES},
                lenient="last",
                missing="empty",
            )
        ),
        demonstrations=((shown, kind.demonstrated(_said("unsatisfied", "high", "This is wrong."))),),
        trim=_trims("draft"),
        max_response_tokens=96,
        **more,
    )


def _said(verdict: str, confidence: str, said: str) -> str:
    return f"<verdict>{verdict}</verdict>\n<confidence>{confidence}</confidence>\n<feedback>{said}</feedback>"


def _trims(*names: str) -> tuple[Trim, ...]:
    return tuple(Trim(name, by="word") for name in names)
