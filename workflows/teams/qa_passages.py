"""What the question-answering workflows share: asking a retriever, and what it found as prompt text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.state import Output, State

NOTHING: Final = "(nothing found)"
"""What a prompt shows where there is nothing to show, so that no role is asked about a blank."""


def lookup_of(query: Callable[[State], str], top_k: int) -> Callable[[State], dict[str, Any]]:
    """A retriever's request for what `query` makes of the state."""

    def request(state: State) -> dict[str, Any]:
        return {"query": query(state), "top_k": top_k}

    return request


def item(state: State) -> str:
    """The item of this branch: what it looks up."""
    return str(state.item)


def documents(output: Output) -> list[Mapping[str, Any]]:
    """What one request found, best first; empty where it was refused or found nothing."""
    return list(output.value["documents"]) if output.valid else []


def found_in(step: str) -> Callable[[State], bool]:
    """A condition: whether the retriever found anything at `step` (of this branch)."""

    def found_passages(state: State) -> bool:
        return bool(documents(state[step]))

    return found_passages


def passages_of(step: str) -> Callable[[State], list[str]]:
    """An input: what the retriever found at `step` (of this branch), best first."""

    def passages(state: State) -> list[str]:
        return [passage(document) for document in documents(state[step])] or [NOTHING]

    return passages


def passage(document: Mapping[str, Any]) -> str:
    """A passage as one line. Its title is left out where the text says it anyway."""
    title, text = document.get("title") or "", document["text"]
    return text if title in text else f"{title}: {text}"


def by_rank(outputs: Iterable[Output]) -> list[tuple[str, Mapping[str, Any]]]:
    """(branch, document) of several requests, each document once: all first hits, then all second ones, …

    So what is cut from the end of a long prompt ranked low, whichever request it answers.
    """
    by_branch = [[(output.branch, document) for document in documents(output)] for output in outputs]
    ranked = [hit for rank in zip_longest(*by_branch) for hit in rank if hit is not None]
    first: dict[Any, tuple[str, Mapping[str, Any]]] = {}
    for branch, document in ranked:
        first.setdefault(document["id"], (branch, document))
    return list(first.values())


def check_counts(**options: Any) -> None:
    """Refuse options that are not whole numbers of at least 1.

    Raises:
        WorkflowError: names the option.
    """
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise WorkflowError(f"option {name} must be a whole number of at least 1, got {value!r}")


def check_flags(**options: Any) -> None:
    """Refuse options that are neither true nor false.

    Raises:
        WorkflowError: names the option.
    """
    for name, value in options.items():
        if not isinstance(value, bool):
            raise WorkflowError(f"option {name} must be true or false, got {value!r}")
