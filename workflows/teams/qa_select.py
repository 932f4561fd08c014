"""`qa_select`: rewrite, look up, choose passages by number, look up again if none is chosen, sum up, answer.

    rewrite → retrieve → select ─┬─ chosen ──────────────────── summarise → answer
                                 └─ none ── retrieve_again ──┘

The second retrieval asks for the question itself. It is also made where the first one refuses or finds
nothing, and where the selector's reply is not a list of numbers. Where it too finds nothing there is
nothing to sum up, and the answer is given without. All roles reply in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.graph import Edge, LlmStep, ToolStep, Workflow
from workflows.parsers import JsonKey
from workflows.roles import Role
from workflows.state import State
from workflows.teams.qa_passages import NOTHING, check_counts, documents, found_in, lookup_of, passage
from workflows.teams.qa_roles import AUTHOR, DRACULA, EMMA, WHO_WROTE, braced
from workflows.tools.retriever import make_retriever


def build(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    top_k: int = 10,
    top_k_again: int = 6,
    search: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        urls: retrieval servers to ask instead.
        top_k: passages to choose from.
        top_k_again: passages of the second retrieval, all of which are summed up.
        search: how is searched, see `make_retriever`: BM25's options, an index and its kind, time limits.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    check_counts(top_k=top_k, top_k_again=top_k_again)
    question = "task.question"
    return Workflow(
        "qa_select",
        roles=_roles(),
        steps=[
            LlmStep("rewrite", "rewriter", {"question": question}),
            ToolStep("retrieve", "retriever", lookup_of(query, top_k)),
            LlmStep("select", "selector", {"question": question, "query": query, "passages": numbered}),
            ToolStep("retrieve_again", "retriever", lookup_of(_question, top_k_again)),
            LlmStep("summarise", "summariser", {"question": question, "passages": chosen_passages}),
            LlmStep("answer", "answerer", {"question": question, "summary": summary}),
        ],
        edges=[
            Edge("rewrite", "retrieve"),
            Edge("retrieve", "select", when=found_in("retrieve")),
            Edge("retrieve", "retrieve_again", when=_nothing_found),
            Edge("select", "retrieve_again", when=_none_chosen),
            Edge("select", "summarise", when=_some_chosen),
            Edge("retrieve_again", "summarise", when=found_in("retrieve_again")),
            Edge("retrieve_again", "answer"),
            Edge("summarise", "answer"),
        ],
        tools={"retriever": make_retriever(corpus, urls, search)},
        answer_step="answer",
    )


def _roles() -> list[Role]:
    def role(name: str, prompt: str, parser: JsonKey, form: Any, shown: dict[str, Any], said: Any) -> Role:
        return Role(
            name,
            prompt=f"{prompt}\nReply: {braced(json.dumps({parser.key: form}))}",
            parser=parser,
            demonstrations=(({"question": WHO_WROTE} | shown, json.dumps({parser.key: said})),),
            trim=tuple(name for name in shown if name in ("passages", "summary")),
            max_response_tokens=64,
        )

    novels = [f"1: {DRACULA}", f"2: {EMMA}"]
    fact = f"Dracula is by {AUTHOR}."
    return [
        role(
            "rewriter",
            "Question: {question}\nWrite a search query.",
            JsonKey("query", kind="text"),
            "your query",
            {},
            "author of Dracula",
        ),
        role(
            "selector",
            "{passages}\nQuery: {query}\nQuestion: {question}\nWhich texts help? [] if none.",
            JsonKey("ids", kind="numbers", may_be_empty=True),
            [1, 2],
            {"passages": novels, "query": "author of Dracula"},
            [1],
        ),
        role(
            "summariser",
            "Text: {passages}\nQuestion: {question}\nSum up what answers it.",
            JsonKey("summary", kind="text"),
            "your summary",
            {"passages": [DRACULA]},
            fact,
        ),
        role(
            "answerer",
            "Text: {summary}\nQuestion: {question}",
            JsonKey("answer", kind="text"),
            "your answer",
            {"summary": [fact]},
            AUTHOR,
        ),
    ]


def query(state: State) -> str:
    """The rewritten question, read leniently; the question itself where the reply is blank."""
    rewritten: str | None = state["rewrite"].best
    return rewritten or _question(state)


def _question(state: State) -> str:
    question: str = state.task["question"]
    return question


def numbered(state: State) -> list[str]:
    """What was found, numbered from 1."""
    return [f"{n}: {passage(document)}" for n, document in enumerate(documents(state["retrieve"]), 1)]


def chosen(state: State) -> list[Mapping[str, Any]]:
    """The documents that the selector names, each once; a number that nothing has names nothing."""
    retrieved = documents(state["retrieve"])
    numbers = state["select"].best or []
    return [retrieved[n - 1] for n in dict.fromkeys(numbers) if 1 <= n <= len(retrieved)]


def chosen_passages(state: State) -> list[str]:
    """What is summed up: the second retrieval where it was made, else what was chosen."""
    again = state.ran("retrieve_again")
    return [passage(d) for d in (documents(state["retrieve_again"]) if again else chosen(state))]


def summary(state: State) -> list[str]:
    """What the summariser said, line by line, read leniently."""
    said: str | None = state["summarise"].best if state.ran("summarise") else None
    return said.splitlines() if said else [NOTHING]


def _nothing_found(state: State) -> bool:
    return not documents(state["retrieve"])


def _some_chosen(state: State) -> bool:
    return bool(chosen(state))


def _none_chosen(state: State) -> bool:
    return not chosen(state)
