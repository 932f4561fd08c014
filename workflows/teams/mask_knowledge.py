"""What a `mask` team knows: sub-questions with their answers, by id, and the answer that it predicts.

Knowledge is a JSON value that a control step hands from round to round:

    {"question": …, "trajectory": [{"id": "t1", "sub_question": …, "sub_answer": …}], "answer": …,
     "queries": […]}

Its functions change nothing in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workflows.teams.mask_parsers import step_id
from workflows.vocabulary import Move

NO_QUERIES: Final = "(nothing yet)"

Knowledge = Mapping[str, Any]


def planned(question: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan knows: its own guesses, and the answer that it predicts."""
    trajectory = [{"id": step_id(n)} | dict(step) for n, step in enumerate(plan["steps"], 1)]
    return {"question": question, "trajectory": trajectory, "answer": plan["answer"], "queries": []}


def learned(
    known: Knowledge, *, where: Mapping[str, str], query: str, evidence: str, answer: str
) -> dict[str, Any]:
    """Knowledge after a round of search.

    Args:
        where: `{"action", "id"}` of an updater's reply: it chooses the place, never the content.
        query, evidence: what is written there.
        answer: what the team predicted before this round.
    """
    step = {"id": where["id"], "sub_question": query, "sub_answer": evidence}
    trajectory = list(known["trajectory"])
    if where["action"] == Move.UPDATE:
        trajectory = [step if old["id"] == where["id"] else old for old in trajectory]
    else:
        trajectory.append(step)
    return {**known, "trajectory": trajectory, "answer": answer, "queries": [*known["queries"], query]}


def next_id(known: Knowledge) -> str:
    """The id that a further step would have."""
    return step_id(len(known["trajectory"]) + 1)


def trajectory_lines(known: Knowledge) -> list[str]:
    """One line for each step, with the id that an updater may name."""
    return [
        f"{step['id']}: {_line(step['sub_question'])} - {_line(step['sub_answer'])}"
        for step in known["trajectory"]
    ]


def query_lines(known: Knowledge) -> list[str]:
    """What was searched so far, in order."""
    return [f"{n}. {_line(query)}" for n, query in enumerate(known["queries"], 1)] or [NO_QUERIES]


def _line(text: str) -> str:
    return " ".join(text.split())
