"""`qa_decompose`: split a question, look each part up, read the findings in parallel, answer.

    decompose ─┬─ retrieve 0 ── read 0 ─┬─ answer
               ├─ retrieve 1 ── read 1 ─┤
               └─ …                     ┘

Branches do not wait for each other. A decomposition that breaks its format counts as malformed and is
replaced by the question itself as the one thing to look up: no role is ever called with blanks. A
sub-question for which the retriever refuses or finds nothing has no reader; a reader whose reply
breaks its format has found "unknown". The answer is given in any case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Source, Step, ToolStep, Workflow
from workflows.parsers import JsonKey, Tag
from workflows.roles import Role
from workflows.single import reply_in
from workflows.state import State
from workflows.tools.retriever import Bm25Retriever

_DRACULA = "Dracula is a novel of 1897 by Bram Stoker, who was born in 1847."
_NOTHING = "(nothing found)"


def build(
    corpus: str = "facts",
    top_k: int = 4,
    readers: bool = True,
    max_sub_questions: int = 3,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        top_k: passages for each sub-question.
        readers: a reader for each sub-question; without, the answerer sees the passages themselves.
        max_sub_questions: more than these are dropped.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    for name, value in (("top_k", top_k), ("max_sub_questions", max_sub_questions)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise WorkflowError(f"option {name} must be a whole number of at least 1, got {value!r}")
    if not isinstance(readers, bool):
        raise WorkflowError(f"option readers must be true or false, got {readers!r}")

    def request(state: State) -> dict[str, Any]:
        return {"query": state.item, "top_k": top_k}

    steps: list[Step] = [
        LlmStep("decompose", "decomposer", {"question": "task.question"}),
        ToolStep("retrieve", "retriever", request, for_each=sub_questions),
    ]
    # decompose → answer makes sure of an answer when nothing at all was found
    edges = [Edge("decompose", "retrieve"), Edge("decompose", "answer")]
    if readers:
        read: dict[str, Source] = {"question": "task.question", "sub_question": "item", "passages": passages}
        steps.append(LlmStep("read", "reader", read, same_branch=True))
        edges += [Edge("retrieve", "read", when=found_passages), Edge("read", "answer")]
    else:
        edges.append(Edge("retrieve", "answer"))
    answer: dict[str, Source] = {"question": "task.question"}
    answer |= {"notes": notes} if readers else {"passages": merged_passages}
    steps.append(LlmStep("answer", "answerer", answer))
    return Workflow(
        "qa_decompose",
        roles=[
            _decomposer(max_sub_questions),
            *([_reader()] if readers else []),
            _answerer("notes" if readers else "passages"),
        ],
        steps=steps,
        edges=edges,
        tools={"retriever": Bm25Retriever(corpus)},
        answer_step="answer",
    )


def _decomposer(max_sub_questions: int) -> Role:
    shown = ["spider size", "ant size"][:max_sub_questions]
    form = json.dumps({"sub_queries": ["query" for _ in shown]})
    return Role(
        "decomposer",
        prompt=(
            f"Question: {{question}}\nWrite search queries, at most {max_sub_questions}.\n"
            f"Reply: {form.replace('{', '{{').replace('}', '}}')}"
        ),
        parser=JsonKey("sub_queries", max_items=max_sub_questions),
        demonstrations=(
            ({"question": "Which is larger, a spider or an ant?"}, json.dumps({"sub_queries": shown})),
        ),
        max_response_tokens=64,
    )


def _reader() -> Role:
    shown = {"passages": _DRACULA, "question": "Who wrote Dracula?", "sub_question": "author of Dracula"}
    return Role(
        "reader",
        prompt=f"Text: {{passages}}\nTopic: {{question}}\nQuestion: {{sub_question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=((shown, "<answer>Bram Stoker</answer>"),),
        trim=("passages",),
        max_response_tokens=48,
    )


def _answerer(context: str) -> Role:
    known = ["author of Dracula: Bram Stoker"] if context == "notes" else [_DRACULA]
    return Role(
        "answerer",
        prompt=f"Text: {{{context}}}\nQuestion: {{question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=(
            ({context: known, "question": "Who wrote Dracula?"}, "<answer>Bram Stoker</answer>"),
        ),
        trim=(context,),
        max_response_tokens=48,
    )


def sub_questions(state: State) -> list[str]:
    """What to look up: the decomposition without repetitions, or the question itself if it is invalid."""
    parsed = state["decompose"]
    if not parsed.valid:
        return [state.task["question"]]
    first: dict[str, str] = {}
    for question in parsed.value:
        first.setdefault(question.casefold(), question)
    return list(first.values())


def found_passages(state: State) -> bool:
    """Whether the retriever of this branch found anything."""
    retrieved = state["retrieve"]
    return retrieved.valid and bool(retrieved.value["documents"])


def passages(state: State) -> list[str]:
    """What the retriever of this branch found, best first."""
    return [passage(document) for document in state["retrieve"].value["documents"]]


def passage(document: Mapping[str, Any]) -> str:
    """A passage as one line. Its title is left out where the text says it anyway."""
    title, text = document.get("title") or "", document["text"]
    return text if title in text else f"{title}: {text}"


def merged_passages(state: State) -> list[str]:
    """The passages of all branches, each once: all first hits, then all second ones, …

    So what is cut from the end of a long prompt ranked low, whichever sub-question it belongs to.
    """
    found = [output.value["documents"] for output in state.all("retrieve") if output.valid]
    ranked = [document for rank in zip_longest(*found) for document in rank if document is not None]
    return [passage(d) for d in {document["id"]: document for document in ranked}.values()] or [_NOTHING]


def notes(state: State) -> list[str]:
    """One line for each sub-question: what was asked, and what its reader found."""
    questions = sub_questions(state)
    found = {output.branch: output for output in state.all("read")}
    lines = []
    for branch, question in enumerate(questions):
        output = found.get(str(branch))
        finding = _NOTHING if output is None else output.value if output.valid else "unknown"
        lines.append(f"{question}: {finding}")
    return lines
