"""`qa_rewrite`: rewrite the question as a query, look it up, select what helps, answer.

    rewrite → retrieve → select → answer

A query that breaks its format is looked up as it stands, a blank one is replaced by the question. Where
the retriever refuses or finds nothing there is nothing to select, and the answer is given without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.graph import Edge, LlmStep, ToolStep, Workflow
from workflows.parsers import Tag
from workflows.roles import Role
from workflows.state import State
from workflows.teams.qa_passages import NOTHING, check_counts, found_in, lookup_of, passages_of
from workflows.teams.qa_roles import AUTHOR, DRACULA, EMMA, WHEN_EMMA, WHO_WROTE, answerer, rewriter
from workflows.tools.retriever import make_retriever


def build(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    top_k: int = 5,
    search: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        urls: retrieval servers to ask instead.
        top_k: passages for the query.
        search: how is searched, see `make_retriever`: BM25's options, an index and its kind, time limits.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    check_counts(top_k=top_k)
    return Workflow(
        "qa_rewrite",
        roles=[rewriter(), _selector(), answerer("facts", [f"Dracula is by {AUTHOR}."])],
        steps=[
            LlmStep("rewrite", "rewriter", {"question": "task.question"}),
            ToolStep("retrieve", "retriever", lookup_of(query, top_k)),
            LlmStep(
                "select",
                "selector",
                {"question": "task.question", "query": query, "passages": passages_of("retrieve")},
            ),
            LlmStep("answer", "answerer", {"question": "task.question", "facts": facts}),
        ],
        edges=[
            Edge("rewrite", "retrieve"),
            Edge("retrieve", "select", when=found_in("retrieve")),
            Edge("retrieve", "answer"),
            Edge("select", "answer"),
        ],
        tools={"retriever": make_retriever(corpus, urls, search)},
        answer_step="answer",
    )


def _selector() -> Role:
    # SmolLM2-135M closed the tag in 10 of 24 replies after one example, 17 after two, 20 with this tag too
    emma = {"passages": [EMMA, DRACULA], "question": WHEN_EMMA, "query": "year of the novel Emma"}
    dracula = {"passages": [DRACULA, EMMA], "question": WHO_WROTE, "query": "author of Dracula"}
    return Role(
        "selector",
        prompt=(
            "Text: {passages}\nQuery: {query}\nQuestion: {question}\n"
            "Reply: <selected>your selection</selected>"
        ),
        parser=Tag("selected"),
        demonstrations=(
            (emma, "<selected>Emma is a novel of 1815</selected>"),
            (dracula, f"<selected>Dracula is a novel of 1897 by {AUTHOR}</selected>"),
        ),
        trim=("passages",),
        max_response_tokens=64,
    )


def query(state: State) -> str:
    """The rewritten question, read leniently; the question itself where the reply is blank."""
    rewritten: str | None = state["rewrite"].best
    return rewritten or state.task["question"]


def facts(state: State) -> list[str]:
    """What the selector kept, line by line."""
    kept: str | None = state["select"].best if state.ran("select") else None
    return kept.splitlines() if kept else [NOTHING]
