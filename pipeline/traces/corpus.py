"""A corpus of traces judged document by document: memory is that of one document and of the ids seen."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.traces.files import Document, documents
from pipeline.traces.format import problems_of, trace_id_of
from pipeline.traces.problem import Problem

EXAMPLES: Final = 20  # problems that a verdict shows in full


@dataclass(slots=True)
class Verdict:
    """How many documents there are, how many are as they should be, and which rules the others break.

    `rules` counts documents by rule, so a document counts under each rule that it breaks.
    """

    documents: int = 0
    good: int = 0
    events: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, Problem]] = field(default_factory=list)  # where, and what

    @property
    def refused(self) -> int:
        return self.documents - self.good

    def as_dict(self) -> dict[str, Any]:
        return {
            "traces": self.documents,
            "good": self.good,
            "refused": self.refused,
            "events": self.events,
            "refused_by_rule": dict(sorted(self.rules.items())),
            "examples": [
                {"where": where, "rule": p.rule, "place": p.where, "text": p.text}
                for where, p in self.examples
            ],
        }


class Judge:
    """Judges documents one after another, and whether two have one id."""

    def __init__(self, format: str | None = None) -> None:
        self.format = format
        self.verdict = Verdict()
        self._seen: set[int] = set()  # 8 bytes of a hash for each id

    def problems(self, document: Document) -> list[Problem]:
        """What is wrong with a document; it is counted."""
        verdict = self.verdict
        verdict.documents += 1
        if document.fault is not None:
            found = [Problem("json", "", document.fault)]
        else:
            found = problems_of(document.value, self.format)
            found += [] if found else self._repeated(document.value)
        if isinstance(document.value, dict):
            verdict.events += _size(document.value)
        verdict.good += not found
        verdict.rules.update({p.rule for p in found})
        room = EXAMPLES - len(verdict.examples)
        verdict.examples += [(document.where, p) for p in found[: max(0, min(room, 3))]]
        return found

    def _repeated(self, value: Any) -> list[Problem]:
        name = trace_id_of(value)
        if name is None:
            return []
        key = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest())
        if key in self._seen:
            return [Problem("duplicate-trace", "trace_id", f"another trace has the id {name!r}")]
        self._seen.add(key)
        return []


def validate(
    files: Sequence[str], format: str | None = None, advance: Callable[[int], None] = lambda events: None
) -> Verdict:
    """Judge all documents of the files.

    Args:
        format: hold all to this one; default: each to the one that its keys tell.
        advance: takes the number of events of each document that was judged.

    Raises:
        UsageError: a file can't be read.
    """
    judge = Judge(format)
    for document in _all(files):
        before = judge.verdict.events
        judge.problems(document)
        advance(judge.verdict.events - before)
    return judge.verdict


def _all(files: Sequence[str]) -> Iterator[Document]:
    for file in files:
        yield from documents(file)


def _size(value: Any) -> int:
    """Events of a trace, or steps of a trajectory and of those inside it."""
    events = value.get("events", value.get("steps"))
    inside = value.get("subagent_trajectories")
    own = len(events) if isinstance(events, list) else 0
    if isinstance(inside, list):
        own += sum(_size(each) for each in inside if isinstance(each, dict))
    return own
