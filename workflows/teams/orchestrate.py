"""`orchestrate`: a lead decides how many helpers to spawn, on what, what to do with their answers, and when
to stop. Written as an async function whose plays spawn others.

    lead ── spawn ──┬─ helper 0 ── return ─┐
                    ├─ helper 1 ── return ─┼─ lead ── spawn … or stop with an answer
                    └─ helper 2 ── return ─┘

In each round the lead either hands work to helpers, as many as it likes up to `max_width`, or answers, and
that ends the episode. It sees what earlier helpers answered. After `max_rounds` rounds it can only answer.

**A decision that can't be read** is malformed, and the play goes on with what can be read of it: acts that
are too many are cut, and a reply without any counts as the answer.

With helpers on a model of `train = false` this is the recipe of production systems: one orchestrator is
trained, its workers are not (docs/examples/orchestrate.toml).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from workflows.crew import Came, Crew
from workflows.decisions import FORMS, Decisions
from workflows.errors import WorkflowError
from workflows.pace import Budget, Pace, Spawning
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.teams.kinds import NO_ANSWER, TaskKind, check_count, numbered, task_kind
from workflows.thinking import Reasoning, without_thoughts
from workflows.vocabulary import Act

_NONE: Final = "none yet"
_PART: Final = "Solve it step by step."


def build(
    task: str = "questions",
    max_width: int = 3,
    max_rounds: int = 2,
    first: int = 0,
    order: str = "logical",
    helper_tokens: int = 256,
    form: str = "tags",
    reasoning: Reasoning = False,
) -> ScriptWorkflow:
    """The workflow.

    Args:
        task: "questions", "reading", "mathematics" or "code": what prompts, answers and their grading are.
        max_width: how many helpers one reply may spawn.
        max_rounds: how often the lead may hand out work.
        first: how many helpers of a round it waits for; the others are cancelled. 0: for all.
        order: which helpers are the first: "logical", "modelled" (by their tokens) or "clock".
        helper_tokens: budget of one helper, in response tokens.
        form: how the lead decides: "tags", or "tool_calls" in the chat format of the model.
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    kind = task_kind(task, reasoning)
    for name, value, least in (
        ("max_width", max_width, 1),
        ("max_rounds", max_rounds, 0),
        ("first", first, 0),
        ("helper_tokens", helper_tokens, 1),
    ):
        check_count(name, value, least)
    if form not in FORMS:
        raise WorkflowError(f"option form is {form!r}; use one of {', '.join(FORMS)}")
    spawning = Spawning(max_depth=1, max_width=max_width, pace=Pace(order=order))
    budget = Budget(tokens=helper_tokens)

    async def orchestrate(team: Crew, task: Mapping[str, Any]) -> None:
        stated = kind.stated(task)

        async def help_with(helper: Crew, brief: Output) -> Output:
            return await helper.call("help", {**stated, "brief": brief})

        came: list[Came] = []
        for left in range(max_rounds, -1, -1):
            shown = {"notes": _notes(kind, came), "choice": _choice(form, max_width) if left else ""}
            reply = await team.call("lead", {**stated, **shown}, reads=[each.output for each in came])
            acts = reply.best or []
            spawns = [each for each in acts if each["act"] == Act.SPAWN][: team.room] if left else []
            for each in spawns:
                where = {"characters": each["characters"]}
                team.spawn("helper", each["text"], help_with, by=reply, budget=budget, detail=where)
            if not spawns:
                _stop(team, kind, reply, acts, came)
                return
            came += await team.join(want=first or None)
            if first:
                await team.cancel(why=f"{first} of them had answered")

    return ScriptWorkflow(
        "orchestrate",
        roles=[_lead(kind, max_width, form), _helper(kind)],
        run=orchestrate,
        steps={"lead": "lead", "help": "helper", "final": None},
        answer_step="final",
        branch_steps=["help"],
        task=kind.graded_as,
        spawning=spawning,
    )


def _stop(team: Crew, kind: TaskKind, reply: Output, acts: list[Any], came: list[Came]) -> None:
    """End with the lead's answer; of a reply that can't be read, with its text."""
    stop = next((each for each in acts if each["act"] == Act.STOP), None)
    answer = (stop and stop["text"]) or without_thoughts(reply.text, kind.reasoning).strip() or None
    if came:
        team.aggregate(answer, came, by=reply, how="by the lead")
    where = {"characters": stop["characters"]} if stop is not None else {}
    team.act(Act.STOP, answer, by=reply, detail={"source": "learned", **where})
    team.note("final", answer, reads=[reply])


def _notes(kind: TaskKind, came: list[Came]) -> list[str]:
    return numbered([str(each.output.best or "").strip() or NO_ANSWER for each in came]) or [_NONE]


def _choice(form: str, most: int) -> str:
    spawn = f"<spawn>what one of at most {most} helpers shall do</spawn>"
    if form == "tool_calls":
        call = '{"name": "spawn", "arguments": {"brief": "what one helper shall do"}}'
        spawn = f"<tool_call>{call}</tool_call> (at most {most})"
    return f"{spawn} or "


def _lead(kind: TaskKind, most: int, form: str) -> Role:
    answer = kind.tagged(kind.content)
    shown = {**kind.shown, "choice": _choice(form, most)}
    work, right = f"<spawn>{_PART}</spawn>", kind.right_reply
    if form == "tool_calls":
        # doubled braces are single ones of a template
        call = f'{{{{"name": "answer", "arguments": {{{{"answer": "{kind.content}"}}}}}}}}'
        answer = f"<tool_call>{call}</tool_call>"
        work = f'<tool_call>{{"name": "spawn", "arguments": {{"brief": "{_PART}"}}}}</tool_call>'
        right = kind.demonstrated(_answer_call(kind.right))
    return Role(
        "lead",
        prompt=f"{kind.statement}Answers of helpers:\n{{notes}}\nReply: {{choice}}{answer}",
        parser=kind.reads(Decisions(kind.plain_parser, kind.tag, most, form)),
        demonstrations=(
            ({**shown, "notes": [_NONE]}, kind.demonstrated(work)),
            ({**shown, "notes": numbered([kind.right])}, right),
        ),
        trim=(Trim("notes", by="word"),),
        max_response_tokens=kind.max_response_tokens + 32 * most,
    )


def _answer_call(answer: str) -> str:
    call = {"name": "answer", "arguments": {"answer": answer}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def _helper(kind: TaskKind) -> Role:
    return Role(
        "helper",
        prompt=f"{kind.statement}Your part: {{brief}}\n{kind.form}",
        parser=kind.parser,
        demonstrations=(({**kind.shown, "brief": _PART}, kind.right_reply),),
        trim=(Trim("brief", by="word"),),
        max_response_tokens=kind.max_response_tokens,
    )
