"""`debate`: several answer, read each other and answer again; one decides. Written as an async function.

    answer 0 ─┐              ┌─ revise 0 ─┐
    answer 1 ─┼─ all agree? ─┼─ revise 1 ─┼─ … ─ decide ─ judge
    answer 2 ─┘      no      └─ revise 2 ─┘

The debaters are one role in branches, told apart by their seeds. They stop when all say the same, or
after `rounds` revisions; with `learned_stop` a role `stopper` decides before each revision instead. The
judge, if there is one, marks the decision from 0 to 10 without changing it: give its role a frozen model and
let the reward `judge` read its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows.errors import WorkflowError
from workflows.parsers import Tag
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.team import Team
from workflows.teams.qa_passages import check_flags
from workflows.teams.single import reply_in
from workflows.teams.stopping import HALT, STOPPER, goes_on, stopper

_SHOWN = {"question": "How many legs does a spider have?"}


def build(
    debaters: int = 3, rounds: int = 1, judge: bool = False, learned_stop: bool = False
) -> ScriptWorkflow:
    """The workflow; its tasks have a `question`.

    Args:
        debaters: how many answer.
        rounds: how often they may revise; 0 is a plain vote that one reads.
        judge: whether a role `judge` marks the decision.
        learned_stop: whether a role `stopper` decides when the debate is over, and not that all agree.

    Raises:
        WorkflowError: an option out of range.
    """
    for name, value, least in (("debaters", debaters, 2), ("rounds", rounds, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WorkflowError(f"option {name} must be a whole number of at least {least}, got {value!r}")

    check_flags(judge=judge, learned_stop=learned_stop)
    if learned_stop and not rounds:
        raise WorkflowError("option learned_stop has no effect with rounds = 0: there is nothing to stop")

    async def is_over(team: Team, question: str, answers: list[Output]) -> bool:
        if not learned_stop:
            return _agree(answers)
        seen = {"question": question, "answers": _said(answers)}
        return not goes_on(await team.call(HALT, seen, reads=answers))

    async def debate(team: Team, task: Mapping[str, Any]) -> None:
        question = task["question"]

        async def answer(branch: Team, _: int) -> Output:
            return await branch.call("answer", {"question": question})

        answers = await team.each(range(debaters), answer)
        for _ in range(rounds):
            if await is_over(team, question, answers):
                break
            answers = await team.each(answers, _reviser(question, answers))
        said = {"question": question, "answers": _said(answers)}
        decision = await team.call("decide", said, reads=answers)
        if judge:
            answer_text = decision.best or decision.text
            await team.call("judge", {"question": question, "answer": answer_text}, reads=[decision])

    steps: dict[str, str | None] = {"answer": "debater", "revise": "reviser", "decide": "decider"}
    roles = [_role("debater", ""), _role("reviser", "answers"), _role("decider", "answers")]
    if not rounds:
        del steps["revise"], roles[1]
    if learned_stop:
        steps = {"answer": steps.pop("answer"), HALT: STOPPER, **steps}
        roles.append(stopper("Question: {question}\nAnswers so far:\n{answers}\n", ["answers"]))
    if judge:
        steps["judge"] = "judge"
        roles.append(_judge())
    return ScriptWorkflow("debate", roles, debate, steps=steps, answer_step="decide")


def _reviser(question: str, answers: list[Output]) -> Any:
    async def revise(branch: Team, own: Output) -> Output:
        others = [o for o in answers if o is not own]
        said = {"question": question, "answers": _said([own, *others])}
        return await branch.call("revise", said, reads=answers)

    return revise


def _said(answers: list[Output]) -> list[str]:
    """One line for each answer; the text of a reply that breaks its format stands for it."""
    return [f"- {answer.best or answer.text.strip() or '(nothing)'}" for answer in answers]


def _agree(answers: list[Output]) -> bool:
    said = {str(answer.value).strip().casefold() if answer.valid else None for answer in answers}
    return len(said) == 1 and None not in said


def _role(name: str, context: str) -> Role:
    shown: dict[str, Any] = {**_SHOWN, context: ["- eight", "- six"]} if context else dict(_SHOWN)
    return Role(
        name,
        prompt=(f"Answers so far:\n{{{context}}}\n" if context else "")
        + f"Question: {{question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=((shown, "<answer>eight</answer>"),),
        trim=(context,) if context else (),
        max_response_tokens=48,
    )


def _judge() -> Role:
    form = "Is the answer right? Reply: <score>0 to 10</score>"
    return Role(
        "judge",
        prompt=f"Question: {{question}}\nAnswer: {{answer}}\n{form}",
        parser=Tag("score"),
        demonstrations=(({**_SHOWN, "answer": "eight"}, "<score>10</score>"),),
        max_response_tokens=16,
    )
