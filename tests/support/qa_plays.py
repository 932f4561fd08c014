"""Plays of the built-in question-answering workflows on a shelf of passages."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from workflows.engine import Message, Sampling
from workflows.errors import InfraError, ToolRefusal
from workflows.graph import Workflow
from workflows.loading import load_workflow
from workflows.playing.record import Played
from workflows.teams.qa_decompose import build as qa
from workflows.testing import play_once


@functools.cache
def workflow_of(use: str) -> Workflow:
    """A built-in workflow with its defaults; its index is built once."""
    workflow = load_workflow(use, {})
    assert isinstance(workflow, Workflow)
    return workflow


QUESTION = "In which city was the author of Emma born?"


TWO = '{"sub_queries": ["Who wrote Emma?", "Where was Jane Austen born?"]}'


class Shelf:
    """A retriever with one document for each query and rank, and one that all share.

    It refuses, finds nothing or is down for queries as told.
    """

    def __init__(self, refused: str = "", unknown: str = "", down: str = ""):
        self.refused = refused
        self.unknown = unknown
        self.down = down

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        query = request["query"]
        assert query.strip(), "no workflow asks for nothing"
        if query == self.down:
            raise InfraError("connection refused")
        if query == self.refused:
            raise ToolRefusal("no")
        if query == self.unknown:
            return {"documents": []}
        found = [{"id": f"{query} {i}", "title": "T", "text": f"about {query} {i}", "score": 1.0}
                 for i in range(request["top_k"])]  # fmt: skip
        return {"documents": [*found, {"id": "same", "title": "", "text": "everywhere", "score": 0.1}]}


def reader(messages: Sequence[Message], sampling: Sampling) -> str:
    return "no tag" if "Where was" in messages[-1]["content"] else "<answer>Jane Austen</answer>"


def play(shelf: Shelf | None = None, decomposer: str = TWO, **options: Any) -> Played:
    w = qa(**options)
    said = {"decomposer": decomposer, "reader": reader, "answerer": "<answer>Steventon</answer>"}
    return play_once(
        w, {"question": QUESTION}, {r: said[r] for r in w.roles}, tools={"retriever": shelf or Shelf()}
    )


def steps(played: Played) -> list[str]:
    return [t["step"] + t["branch"] for t in played.turns]


def asked(played: Played, step: str) -> list[str]:
    """The last message of each turn of a step."""
    return [json.loads(t["messages"])[-1]["content"] for t in played.turns if t["step"] == step]


def queries(played: Played) -> list[str]:
    return [json.loads(t["tool_request"])["query"] for t in played.turns if t["event"] == "tool"]


def of(played: Played, step: str) -> dict[str, Any]:
    """The only turn of a step."""
    (turn,) = [t for t in played.turns if t["step"] == step]
    return turn
