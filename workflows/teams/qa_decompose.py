"""`qa_decompose`: split a question, look each part up, read the findings in parallel, answer.

    decompose ─┬─ retrieve 0 ── read 0 ─┬─ answer
               ├─ retrieve 1 ── read 1 ─┤
               └─ …                     ┘

Branches do not wait for each other. A decomposition that breaks its format counts as malformed and is
replaced by the question itself as the one thing to look up; one that lists nothing goes straight to the
answer. No role is ever called with blanks. A sub-question for which the retriever refuses or finds
nothing has no reader; a reader whose reply breaks its format has said what its text says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.graph import Edge, LlmStep, Source, Step, ToolStep, Workflow
from workflows.parsers import Tag
from workflows.roles import Role
from workflows.state import State
from workflows.teams.qa_passages import (
    NOTHING,
    by_rank,
    check_counts,
    check_flags,
    found_in,
    item,
    lookup_of,
    passage,
    passages_of,
)
from workflows.teams.qa_roles import AUTHOR, DRACULA, WHO_WROTE, answerer, decomposer
from workflows.teams.single import reply_in
from workflows.tools.retriever import make_retriever

UNKNOWN = "unknown"


def build(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    top_k: int = 4,
    readers: bool = True,
    max_sub_questions: int = 3,
    search: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        urls: retrieval servers to ask instead.
        top_k: passages for each sub-question.
        readers: a reader for each sub-question; without, the answerer sees the passages themselves.
        max_sub_questions: more than these are dropped.
        search: how is searched, see `make_retriever`: BM25's options, an index and its kind, time limits.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    check_counts(top_k=top_k, max_sub_questions=max_sub_questions)
    check_flags(readers=readers)
    steps: list[Step] = [
        LlmStep("decompose", "decomposer", {"question": "task.question"}),
        ToolStep("retrieve", "retriever", lookup_of(item, top_k), for_each=sub_questions),
    ]
    # decompose → answer makes sure of an answer when nothing at all was found
    edges = [Edge("decompose", "retrieve"), Edge("decompose", "answer")]
    if readers:
        read: dict[str, Source] = {"question": "task.question", "sub_question": "item"}
        read["passages"] = passages_of("retrieve")
        steps.append(LlmStep("read", "reader", read, same_branch=True))
        edges += [Edge("retrieve", "read", when=found_in("retrieve")), Edge("read", "answer")]
    else:
        edges.append(Edge("retrieve", "answer"))
    answer: dict[str, Source] = {"question": "task.question"}
    answer |= {"notes": notes} if readers else {"passages": merged_passages}
    steps.append(LlmStep("answer", "answerer", answer))
    return Workflow(
        "qa_decompose",
        roles=[
            decomposer(max_sub_questions),
            *([_reader()] if readers else []),
            answerer("notes", [f"author of Dracula: {AUTHOR}"])
            if readers
            else answerer("passages", [DRACULA]),
        ],
        steps=steps,
        edges=edges,
        tools={"retriever": make_retriever(corpus, urls, search)},
        answer_step="answer",
    )


def _reader() -> Role:
    shown = {"passages": [DRACULA], "question": WHO_WROTE, "sub_question": "author of Dracula"}
    return Role(
        "reader",
        prompt=f"Text: {{passages}}\nTopic: {{question}}\nQuestion: {{sub_question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=((shown, f"<answer>{AUTHOR}</answer>"),),
        trim=("passages",),
        max_response_tokens=48,
    )


def sub_questions(state: State) -> list[str]:
    """What to look up: the decomposition without repetitions, or the question itself if it is not a list."""
    listed = state["decompose"].best
    if listed is None:
        return [state.task["question"]]
    first: dict[str, str] = {}
    for question in listed:
        first.setdefault(question.casefold(), question)
    return list(first.values())


def merged_passages(state: State) -> list[str]:
    """The passages of all branches, each once, those that ranked high first."""
    return [passage(document) for _, document in by_rank(state.all("retrieve"))] or [NOTHING]


def notes(state: State) -> list[str]:
    """One line for each sub-question: what was asked, and what its reader found."""
    questions = sub_questions(state)
    by_branch = {output.branch: output for output in state.all("read")}
    lines = []
    for branch, question in enumerate(questions):
        output = by_branch.get(str(branch))
        finding = NOTHING if output is None else " ".join((output.best or UNKNOWN).split())
        lines.append(f"{question}: {finding}")
    return lines or [NOTHING]
