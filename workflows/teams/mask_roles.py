"""The roles of `mask`: prompts, formats and the examples that they show."""

from __future__ import annotations

from typing import Any, Final

from workflows.parsers import Parser
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.teams.mask_knowledge import NO_QUERIES
from workflows.teams.mask_parsers import (
    NO_EVIDENCE,
    AnswerParser,
    PlanParser,
    SearchParser,
    SummaryParser,
    UpdateParser,
)
from workflows.teams.qa_roles import DRACULA, EMMA, WHEN_EMMA

_QUESTION: Final = "Where was the author of Dracula born?"
_LEGS: Final = "How many legs do two spiders have?"
_GUESSED: Final = ["t1: Who wrote Dracula? - Bram Stoker", "t2: Where was Bram Stoker born? - London"]
_LEARNED: Final = [_GUESSED[0], "t2: birthplace of Bram Stoker - Bram Stoker was born in Dublin."]
_PASSAGE: Final = "Bram Stoker was born in 1847 in Dublin."
_EVIDENCE: Final = "Bram Stoker was born in Dublin."
_QUERY: Final = "birthplace of Bram Stoker"

# a history is cut where it is oldest; passages are cut where they rank lowest
_OLDEST: Final = Trim("trajectory", drop="first")
_OLDEST_QUERIES: Final = Trim("queries", drop="first")


def roles() -> list[Role]:
    """Planner, answerer, searcher, summariser, updater."""
    return [
        _role(
            "planner",
            "Split it into short questions, at most 5, and guess.\n"
            "Reply: <q1>short question</q1>\n<a1>guess</a1>\n<final_answer>your answer</final_answer>",
            PlanParser(),
            (
                {},
                "<q1>Who wrote Dracula?</q1>\n<a1>Bram Stoker</a1>\n"
                "<q2>Where was Bram Stoker born?</q2>\n<a2>London</a2>\n<final_answer>London</final_answer>",
            ),
            (
                {"question": _LEGS},
                "<q1>How many legs does a spider have?</q1>\n<a1>eight</a1>\n"
                "<final_answer>sixteen</final_answer>",
            ),
            max_response_tokens=128,
        ),
        _role(
            "answerer",
            "Known:\n{trajectory}\nReply: <final_answer>your answer</final_answer>",
            AnswerParser(),
            ({"trajectory": _LEARNED}, "<final_answer>Dublin</final_answer>"),
            (
                {"question": _LEGS, "trajectory": ["t1: legs of a spider - eight"]},
                "<final_answer>sixteen</final_answer>",
            ),
            trim=(_OLDEST,),
            max_response_tokens=48,
        ),
        _role(
            "searcher",
            "Known:\n{trajectory}\nSearched:\n{queries}\n"
            "Reply: <search>next query</search> or <end> if enough is known",
            SearchParser(),
            ({"trajectory": _GUESSED, "queries": [NO_QUERIES]}, f"<search>{_QUERY}</search>"),
            ({"trajectory": _LEARNED, "queries": [f"1. {_QUERY}"]}, "<end>"),
            trim=(_OLDEST_QUERIES, _OLDEST),
            max_response_tokens=48,
        ),
        _role(
            "summariser",
            "Query: {query}\nReply: <evidence>your evidence</evidence>",
            SummaryParser(),
            ({"question": _LEGS, "passages": [_PASSAGE], "query": "legs of a spider"}, NO_EVIDENCE),
            (
                {"question": WHEN_EMMA, "passages": [EMMA, DRACULA], "query": "year of the novel Emma"},
                "<evidence>Emma is a novel of 1815</evidence>",
            ),
            ({"passages": [_PASSAGE], "query": _QUERY}, f"<evidence>{_EVIDENCE}</evidence>"),
            before="Text: {passages}\n",
            trim=("passages",),
            max_response_tokens=96,
        ),
        _role(
            "updater",
            "Known:\n{trajectory}\nAnswer so far: {answer}\nNew: {query} - {evidence}\n"
            "Reply: <add>{next_id}</add> or <update>t1</update> for a step that it corrects",
            UpdateParser(),
            (_found(_GUESSED, "t3"), "<update>t2</update>"),
            (_found(_GUESSED[:1], "t2"), "<add>t2</add>"),
            trim=(_OLDEST,),
            max_response_tokens=16,
        ),
    ]


def _found(known: list[str], next_id: str) -> dict[str, Any]:
    return {
        "trajectory": known,
        "answer": "London",
        "query": _QUERY,
        "evidence": _EVIDENCE,
        "next_id": next_id,
    }


def _role(
    name: str, ask: str, parser: Parser, *shown: tuple[dict[str, Any], str], before: str = "", **more: Any
) -> Role:
    return Role(
        name,
        prompt=f"{before}Question: {{question}}\n{ask}",
        parser=parser,
        demonstrations=tuple(({"question": _QUESTION} | variables, reply) for variables, reply in shown),
        **more,
    )
