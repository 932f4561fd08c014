"""Stored episodes of a run as a file of traces, one a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec

from pipeline.store.shelf import Shelf
from pipeline.store.spans import within
from pipeline.traces.episode import Episode, episodes_of
from pipeline.traces.extension import Source
from pipeline.traces.format import Format, written
from pipeline.traces.otel import LOST
from pipeline.traces.rows import Content
from pipeline.traces.survey.rules import turn_tokens
from pipeline.traces.survey.write import survey_trace
from stages.tables.filesystem import filesystem, make_parent
from workflows.errors import UsageError


@dataclass(slots=True)
class Exported:
    """What was written, and what was left out."""

    file: str
    format: str
    content: str
    traces: int = 0
    turns: int = 0
    tokens: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    lost: tuple[str, ...] = ()  # what the format has no place for

    def as_dict(self) -> dict[str, Any]:
        values = {k: getattr(self, k) for k in ("file", "format", "content", "traces", "turns", "tokens")}
        return {**values, "statuses": dict(self.statuses), "lost": list(self.lost)}


def source_of(shelf: Shelf) -> Source:
    """Where the episodes of a shelf come from."""
    return Source(shelf.name.replace(", replay ", "/replays/"), workflow_of(shelf.run.info))


def workflow_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a trace says of a run's workflow: its name, who acts in which step, and which step answers.

    It is read off the lines of the run's drawing: `role reader, answer`, `tool retriever, for each item`.
    """
    graph = info.get("graph")
    if not isinstance(graph, Mapping):
        return {}
    lines = {step["name"]: str(step["what"]).split(", ") for step in graph.get("steps", ())}
    actors = {name: line[0].partition(" ") for name, line in lines.items()}
    answers = [name for name, line in lines.items() if line[-1] == "answer"]
    return {
        "name": graph.get("name"),
        "steps": {name: actor for name, (_, _, actor) in actors.items()},
        **({"answer_step": answers[0]} if answers else {}),
    }


def exported_episodes(shelf: Shelf, iterations: str | None) -> Iterator[Episode]:
    """The episodes of a shelf, of all its iterations or of those in a span `A:B`.

    Raises:
        UsageError: there is none.
    """
    if not shelf.indices:
        shelf.chosen(None)  # says that there is none yet
    chosen = [index for index in shelf.indices if within(index, iterations)]
    if not chosen:
        there = f"{shelf.indices[0]} to {shelf.indices[-1]}"
        raise UsageError(f"--iterations {iterations!r} has none of the run's, which are {there}")
    for index in chosen:
        yield from episodes_of(shelf.place(index))


def exported_traces(shelf: Shelf, iterations: str | None = None) -> Iterator[dict[str, Any]]:
    """The episodes of a shelf as traces of the survey's schema, with their content.

    Raises:
        UsageError: there is none.
    """
    source = source_of(shelf)
    for episode in exported_episodes(shelf, iterations):
        yield survey_trace(episode, source, "inline")


def export(
    shelf: Shelf,
    out: str,
    format: Format,
    content: Content,
    iterations: str | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Exported:
    """Write the traces of a shelf to a new file of JSON lines.

    Raises:
        UsageError: the file is there already or can't be written, or nothing is there to export.
    """
    fs, path = filesystem(out)
    if fs.exists(path):
        raise UsageError(f"--out {out!r} is there already; name a new file")
    if not out.endswith((".jsonl", ".ndjson")):
        raise UsageError(f"--out {out!r} is to be a file of JSON lines; name it like traces.jsonl")
    done = Exported(out, format, content, lost=tuple(LOST) if format == "otel" else ())
    source = source_of(shelf)
    episodes = exported_episodes(shelf, iterations)
    first = next(episodes, None)
    if first is None:
        raise UsageError(f"run {shelf.name!r} has no episode to export there; wait for its first rollout")
    try:
        make_parent(fs, path)
        with fsspec.open(out, "wt", encoding="utf-8") as file:
            for episode in _and(first, episodes):
                document = written(episode, source, content, format)
                file.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
                _count(done, episode)
                advance()
    except OSError as error:
        raise UsageError(f"--out {out!r} can't be written ({error.strerror or error})") from None
    return done


def _and(first: Episode, others: Iterator[Episode]) -> Iterator[Episode]:
    yield first
    yield from others


def _count(done: Exported, episode: Episode) -> None:
    done.traces += 1
    done.turns += len(episode.turns)
    done.tokens += sum(turn_tokens(turn) for turn in episode.turns)
    done.statuses[str(episode.row["status"])] += 1
