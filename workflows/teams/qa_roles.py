"""Roles that several question-answering workflows have, and the example that their prompts show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from workflows.parsers import JsonKey, Tag
from workflows.roles import Role
from workflows.teams.single import reply_in

DRACULA: Final = "Dracula is a novel of 1897 by Bram Stoker, who was born in 1847."
WHO_WROTE: Final = "Who wrote Dracula?"
AUTHOR: Final = "Bram Stoker"
EMMA: Final = "Emma is a novel of 1815 by Jane Austen. It was published in London."
WHEN_EMMA: Final = "When was Emma published?"


def decomposer(max_sub_questions: int) -> Role:
    """Question → `{"sub_queries": [...]}`."""
    shown = ["spider size", "ant size"][:max_sub_questions]
    form = json.dumps({"sub_queries": ["query" for _ in shown]})
    return Role(
        "decomposer",
        prompt=(
            f"Question: {{question}}\nWrite search queries, at most {max_sub_questions}.\n"
            f"Reply: {braced(form)}"
        ),
        parser=JsonKey("sub_queries", max_items=max_sub_questions),
        demonstrations=(
            ({"question": "Which is larger, a spider or an ant?"}, json.dumps({"sub_queries": shown})),
        ),
        max_response_tokens=16 * (max_sub_questions + 1),
    )


def rewriter() -> Role:
    """Question → `<query>…</query>`."""
    return Role(
        "rewriter",
        prompt="Question: {question}\nWrite a search query.\nReply: <query>your query</query>",
        parser=Tag("query"),
        demonstrations=(({"question": WHO_WROTE}, "<query>author of Dracula</query>"),),
        max_response_tokens=48,
    )


def answerer(context: str, shown: Sequence[str]) -> Role:
    """What was found and the question → `<answer>…</answer>`.

    Args:
        context: the variable that holds what was found, a list of lines; it alone may be trimmed.
        shown: its value in the demonstration.
    """
    return Role(
        "answerer",
        prompt=f"Text: {{{context}}}\nQuestion: {{question}}\n{reply_in('answer')}",
        parser=Tag("answer"),
        demonstrations=(({context: list(shown), "question": WHO_WROTE}, f"<answer>{AUTHOR}</answer>"),),
        trim=(context,),
        max_response_tokens=48,
    )


def braced(text: str) -> str:
    """`text` as it stands in a template, where single braces would be placeholders."""
    return text.replace("{", "{{").replace("}", "}}")
