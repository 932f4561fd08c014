"""`mask`: plan, answer, then search for what is missing, round by round, until it is enough (M-ASK).

    plan → knowledge → answer → search → retrieve → summarise → update ─┐
               ↑                    └ <end>: stop                       │
               └──────────────── again, at most max_rounds ─────────────┘

The planner splits the question and guesses; its guesses are the first knowledge. Each round asks the
retriever one query, sums up what was found, and lets the updater choose where in the knowledge it goes:
a step that it corrects, or a new one. What is written there is the query and the evidence, never the
updater's own words. Then the answer is given anew. So answer *t* follows the search of round *t* - 1, and
the last answer is the team's. The searcher may stop the team, in the first round too; with `learned_stop` a
role `stopper` decides so first, after every answer but the last.

A reply that breaks its format is read leniently (`teams.mask_parsers`) and the round goes on. A query
that the retriever refuses, or that finds nothing, is summed up as nothing found.

Source: the M-ASK workflow of UnityMAS-O. There the planner does not see the question, and an update names
steps by ids that no prompt shows; here it does, and they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflows.graph import ControlStep, Edge, LlmStep, Source, ToolStep, Workflow
from workflows.state import State
from workflows.teams.mask_knowledge import learned, next_id, planned, query_lines, trajectory_lines
from workflows.teams.mask_roles import roles
from workflows.teams.qa_passages import check_counts, check_flags, lookup_of, passages_of
from workflows.teams.stopping import HALT, STOPPER, goes_on, stopper
from workflows.tools.retriever import make_retriever
from workflows.vocabulary import Move


def build(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    top_k: int = 5,
    max_rounds: int = 3,
    stop_on_search_end: bool = True,
    search: Mapping[str, Any] | None = None,
    learned_stop: bool = False,
) -> Workflow:
    """The workflow over one corpus.

    Args:
        corpus: of the BM25 retriever: a built-in name, or a path of passages.
        urls: retrieval servers to ask instead.
        top_k: passages for each search.
        max_rounds: of search; there is one more answer than that.
        stop_on_search_end: whether the searcher's `<end>` stops the team. If not, the question itself is
            looked up in that round.
        search: how is searched, see `make_retriever`: BM25's options, an index and its kind, time limits.
        learned_stop: whether a role `stopper` decides after each answer if the team goes on.

    Raises:
        WorkflowError: an option of the wrong kind or out of range.
    """
    check_counts(top_k=top_k, max_rounds=max_rounds)
    check_flags(stop_on_search_end=stop_on_search_end, learned_stop=learned_stop)

    def rounds_are_left(state: State) -> bool:
        return state.round < max_rounds

    def goes_on(state: State) -> bool:
        return not stop_on_search_end or state["search"].best["action"] == Move.SEARCH

    question = "task.question"
    seen: dict[str, Source] = {
        "question": question,
        "trajectory": trajectory,
        "answer": lambda s: s["answer"].best,
    }
    asks = [Edge("answer", "search", when=rounds_are_left)]
    if learned_stop:
        asks = [Edge("answer", HALT, when=rounds_are_left), Edge(HALT, "search", when=_not_halted)]
    return Workflow(
        "mask",
        roles=[*roles(), *([stopper(_SEEN, ["trajectory"])] if learned_stop else [])],
        steps=[
            LlmStep("plan", "planner", {"question": question}),
            ControlStep("knowledge", knowledge),
            LlmStep("answer", "answerer", {"question": question, "trajectory": trajectory}),
            *([LlmStep(HALT, STOPPER, seen)] if learned_stop else []),
            LlmStep(
                "search", "searcher", {"question": question, "trajectory": trajectory, "queries": queries}
            ),
            ToolStep("retrieve", "retriever", lookup_of(query, top_k)),
            LlmStep(
                "summarise",
                "summariser",
                {"question": question, "query": query, "passages": passages_of("retrieve")},
            ),
            LlmStep(
                "update",
                "updater",
                {
                    "question": question,
                    "trajectory": trajectory,
                    "answer": lambda state: state["answer"].best,
                    "query": query,
                    "evidence": lambda state: state["summarise"].best,
                    "next_id": lambda state: next_id(state["knowledge"].value),
                },
            ),
        ],
        edges=[
            Edge("plan", "knowledge"),
            Edge("knowledge", "answer"),
            *asks,
            Edge("search", "retrieve", when=goes_on),
            Edge("retrieve", "summarise"),
            Edge("summarise", "update"),
            Edge("update", "knowledge", limit=max_rounds),
        ],
        tools={"retriever": make_retriever(corpus, urls, search)},
        answer_step="answer",
    )


_SEEN: Final = "Question: {question}\nWhat is known:\n{trajectory}\nAnswer: {answer}\n"


def _not_halted(state: State) -> bool:
    return goes_on(state[HALT])


def knowledge(state: State) -> dict[str, Any]:
    """What is known at the start of a round: the plan's guesses, then what each round wrote."""
    if state.round == 0:
        return planned(state.task["question"], state["plan"].best)
    return learned(
        state["knowledge"].value,
        where=state["update"].best,
        query=query(state),
        evidence=state["summarise"].best,
        answer=state["answer"].best,
    )


def query(state: State) -> str:
    """What is searched; the question itself where the searcher asks nothing but the team goes on."""
    asked: str = state["search"].best["query"]
    return asked or str(state.task["question"])


def trajectory(state: State) -> list[str]:
    """The steps of what is known, one a line."""
    return trajectory_lines(state["knowledge"].value)


def queries(state: State) -> list[str]:
    """What was searched in earlier rounds, one a line."""
    return query_lines(state["knowledge"].value)
