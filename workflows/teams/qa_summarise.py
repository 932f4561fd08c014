"""`qa_summarise`: split a question, look each part up, answer all parts in one reply, then the question.

    decompose ─┬─ retrieve 0 ─┬─ summarise → answer
               └─ retrieve 1 ─┘

What becomes of a decomposition that breaks its format is as in `qa_decompose`. Without any passage
there is nothing to summarise, and the answer is given without. A summary that breaks its format is
shown to the answerer as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.graph import Edge, LlmStep, ToolStep, Workflow
from workflows.parsers import JsonKey
from workflows.roles import Role
from workflows.state import State
from workflows.teams.qa_decompose import UNKNOWN, sub_questions
from workflows.teams.qa_passages import NOTHING, by_rank, check_counts, found_in, item, lookup_of, passage
from workflows.teams.qa_roles import AUTHOR, DRACULA, WHO_WROTE, answerer, braced, decomposer
from workflows.tools.retriever import make_retriever


def build(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    top_k: int = 5,
    max_sub_questions: int = 5,
    search: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        urls: retrieval servers to ask instead.
        top_k: passages for each sub-question.
        max_sub_questions: more than these are dropped, and more sub-answers too.
        search: how is searched, see `make_retriever`: BM25's options, an index and its kind, time limits.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    check_counts(top_k=top_k, max_sub_questions=max_sub_questions)

    return Workflow(
        "qa_summarise",
        roles=[
            decomposer(max_sub_questions),
            _summariser(max_sub_questions),
            answerer("notes", [f"author of Dracula: {AUTHOR}"]),
        ],
        steps=[
            LlmStep("decompose", "decomposer", {"question": "task.question"}),
            ToolStep("retrieve", "retriever", lookup_of(item, top_k), for_each=sub_questions),
            LlmStep(
                "summarise",
                "summariser",
                {"question": "task.question", "sub_questions": numbered, "passages": numbered_passages},
            ),
            LlmStep("answer", "answerer", {"question": "task.question", "notes": notes}),
        ],
        edges=[
            Edge("decompose", "retrieve"),
            Edge("retrieve", "summarise", when=found_in("retrieve")),
            Edge("decompose", "answer"),
            Edge("summarise", "answer"),
        ],
        tools={"retriever": make_retriever(corpus, urls, search)},
        answer_step="answer",
    )


def _summariser(max_sub_questions: int) -> Role:
    form = json.dumps({"sub_answers": ["answer 1", "answer 2"][:max_sub_questions]})
    shown = {"passages": [f"1: {DRACULA}"], "question": WHO_WROTE, "sub_questions": ["1: author of Dracula"]}
    return Role(
        "summariser",
        prompt=(
            "Text:\n{passages}\nQueries:\n{sub_questions}\nQuestion: {question}\n"
            f"Answer each query.\nReply: {braced(form)}"
        ),
        parser=JsonKey("sub_answers", max_items=max_sub_questions),
        demonstrations=((shown, json.dumps({"sub_answers": [AUTHOR]})),),
        trim=("passages",),
        max_response_tokens=96,
    )


def numbered(state: State) -> list[str]:
    """The sub-questions, numbered from 1."""
    return [f"{n}: {question}" for n, question in enumerate(sub_questions(state), 1)]


def numbered_passages(state: State) -> list[str]:
    """The passages of all sub-questions with the number of theirs, each once, high ranks first."""
    return [f"{int(branch) + 1}: {passage(document)}" for branch, document in by_rank(state.all("retrieve"))]


def notes(state: State) -> list[str]:
    """One line for each sub-question with its answer, or the lines of a summary that is not a list."""
    questions = sub_questions(state)
    if not state.ran("summarise"):
        return [f"{question}: {NOTHING}" for question in questions] or [NOTHING]
    output = state["summarise"]
    if output.best is None:
        return output.text.split("\n") if output.text.strip() else [NOTHING]
    answers = [*output.best, *[UNKNOWN] * len(questions)]
    return [f"{question}: {answer}" for question, answer in zip(questions, answers, strict=False)]
