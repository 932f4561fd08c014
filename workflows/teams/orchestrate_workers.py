"""`orchestrate_workers`: one proposes strategies, a worker solves the whole task by each, one compares.

                   ┌─ work 0 ─┐
    orchestrate ───┼─ work 1 ─┼─ synthesize
                   └─ work 2 ─┘

Workers are one role in branches 0, 1, …, one for each strategy, all at the same time or in turn. In turn, a
worker also sees what those before it answered.

**Too many strategies.** More than `max_strategies` end the episode without an answer, which is worth what no
answer is (0 by the rewards that ship); with `excess = "cut"` the first of them are worked on. Either way the
note `too_many` says how many there were, and `control/too_many/turns` counts such episodes.

**Without a readable strategy.** The text of the reply is the one strategy; an empty reply stands for
`ANY_WAY`, so no worker gets a blank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.parsers import Parsed, ParserHooks, invalid, tagged
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.team import Team
from workflows.teams.kinds import TaskKind, check_count, numbered, task_kind
from workflows.teams.qa_passages import check_flags
from workflows.teams.voting import chooser
from workflows.thinking import Reasoning

ANY_WAY: Final = "any way that you like"
_NONE: Final = "none"
_EXCESS: Final = ("end", "cut")
_WAYS: Final = ("Do it directly.", "Do it twice and compare.")


@dataclass(frozen=True, slots=True)
class Strategies(ParserHooks):
    """What stands in `<strategy>…</strategy>`, each filled one, in order: a list of 1 to `most`.

    The lenient reading of more is all of them; of none, the whole text as one.
    """

    most: int

    def parse(self, text: str) -> Parsed:
        listed = [span.content for span in tagged("strategy", text) if span.content]
        if not listed:
            return invalid("no <strategy>", [text.strip()] if text.strip() else None)
        if len(listed) > self.most:
            return invalid(f"{len(listed)} strategies, at most {self.most} are allowed", listed)
        return Parsed(listed, True)


def build(
    task: str = "questions",
    max_strategies: int = 3,
    parallel: bool = True,
    excess: str = "end",
    reasoning: Reasoning = False,
) -> ScriptWorkflow:
    """The workflow.

    Args:
        task: "questions", "reading", "mathematics" or "code": what prompts, answers and their grading are.
        max_strategies: how many the orchestrator may propose.
        parallel: workers answer at the same time; false: in turn, each sees the answers before it.
        excess: what more strategies than that do: "end" the episode without an answer, or "cut" the rest.
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    kind = task_kind(task, reasoning)
    check_count("max_strategies", max_strategies, 1)
    check_flags(parallel=parallel)
    if excess not in _EXCESS:
        raise WorkflowError(f"option excess is {excess!r}; use one of {', '.join(_EXCESS)}")

    async def orchestrate(team: Team, task: Mapping[str, Any]) -> None:
        stated = kind.stated(task)
        plan = await team.call("orchestrate", kind.only_stated(stated))
        ways: list[str] = plan.best or [ANY_WAY]
        if len(ways) > max_strategies:
            team.note("too_many", len(ways), reads=[plan])
            if excess == "end":
                return
            ways = ways[:max_strategies]

        async def work(branch: Team, way: str) -> Output:
            return await branch.call("work", {**stated, "strategy": way}, reads=[plan])

        if parallel:
            done = await team.each(ways, work)
        else:
            done = []
            for index, way in enumerate(ways):
                seen = {"strategy": way, "earlier": _answers(kind, done) or [_NONE]}
                done.append(await team.branch(index).call("work", {**stated, **seen}, reads=[plan, *done]))
        await team.call("synthesize", {**stated, "answers": _answers(kind, done)}, reads=done)

    return ScriptWorkflow(
        "orchestrate_workers",
        roles=[
            _orchestrator(kind, max_strategies),
            _worker(kind, parallel),
            chooser(kind, "synthesizer", "answers", "Compare the answers and give the right one."),
        ],
        run=orchestrate,
        steps={
            "orchestrate": "orchestrator",
            "too_many": None,
            "work": "worker",
            "synthesize": "synthesizer",
        },
        answer_step="synthesize",
        branch_steps=["work"],
        task=kind.graded_as,
    )


def _answers(kind: TaskKind, outputs: list[Output]) -> list[str]:
    return numbered([kind.answer(output) for output in outputs])


def _orchestrator(kind: TaskKind, most: int) -> Role:
    form = "\n".join(f"<strategy>way {number}</strategy>" for number in range(1, most + 1))
    shown = "\n".join(f"<strategy>{way}</strategy>" for way in _WAYS[:most])
    return Role(
        "orchestrator",
        prompt=f"{kind.statement}In which ways can this be solved? Name at most {most}.\nReply: {form}",
        parser=kind.reads(Strategies(most)),
        demonstrations=((kind.only_stated(kind.shown), kind.demonstrated(shown)),),
        max_response_tokens=32 * (most + 1),
    )


def _worker(kind: TaskKind, parallel: bool) -> Role:
    earlier = "" if parallel else "Earlier answers:\n{earlier}\n"
    shown = {**kind.shown, "strategy": _WAYS[0]} | ({} if parallel else {"earlier": [_NONE]})
    return Role(
        "worker",
        prompt=f"{kind.statement}{earlier}Solve all of it this way: {{strategy}}\n{kind.form}",
        parser=kind.parser,
        demonstrations=((shown, kind.right_reply),),
        trim=(*(() if parallel else (Trim("earlier", by="word"),)), Trim("strategy", by="word")),
        max_response_tokens=kind.max_response_tokens,
    )
