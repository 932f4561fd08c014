"""The formats of traces by their names: how a document of one is judged, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pipeline.traces.atif.read import read_atif
from pipeline.traces.atif.rules import RULES as ATIF_RULES
from pipeline.traces.atif.rules import problems_of as atif_problems
from pipeline.traces.atif.write import atif_trajectory
from pipeline.traces.episode import Episode
from pipeline.traces.extension import Source
from pipeline.traces.imported import Imported
from pipeline.traces.otel import otel_request
from pipeline.traces.problem import Problem
from pipeline.traces.rows import Content
from pipeline.traces.survey.read import read_survey
from pipeline.traces.survey.rules import problems_of as survey_problems
from pipeline.traces.survey.words import RULES as SURVEY_RULES
from pipeline.traces.survey.write import survey_trace
from workflows.errors import UsageError

Format = Literal["atif", "survey", "otel"]
FORMATS: Final = ("atif", "survey", "otel")
READ: Final = ("atif", "survey")  # of which traces are read
RULES: Final[Mapping[str, Mapping[str, str]]] = {"atif": ATIF_RULES, "survey": SURVEY_RULES}


def written(episode: Episode, source: Source, content: Content, format: Format) -> dict[str, Any]:
    """An episode as a document of a format."""
    if format == "atif":
        return atif_trajectory(episode, source, content)
    if format == "otel":
        return otel_request(episode, source, content)
    return survey_trace(episode, source, content)


def format_of(value: Any) -> str | None:
    """Which format a document is of, by its keys; None where nothing tells."""
    if not isinstance(value, Mapping):
        return None
    if "steps" in value or "schema_version" in value:
        return "atif"
    if "events" in value or "edges" in value:
        return "survey"
    return None


def problems_of(value: Any, format: str | None = None) -> list[Problem]:
    """The rules that a document breaks, those of its own format where none is named.

    Raises:
        UsageError: traces of that format are not read.
    """
    format = format or format_of(value)
    if format not in (None, *READ):
        raise UsageError(f"traces of format {format!r} are only written; read are: {', '.join(READ)}")
    if format == "atif":
        return atif_problems(value)
    if format == "survey":
        return survey_problems(value)
    return [
        Problem("object", "", "it is no trace: an object with steps (ATIF) or events (the survey's schema)")
    ]


def trace_id_of(value: Mapping[str, Any]) -> str | None:
    """A document's own id, if it has one."""
    found = value.get("trace_id", value.get("trajectory_id"))
    return found if isinstance(found, str) else None


def read(value: Mapping[str, Any], temperature: float | None = None) -> Imported:
    """The episode of a document that breaks no rule; `temperature` as of `traces.imported.settle`.

    Raises:
        ValueError: a row of Cadre's own in it does not fit its table.
    """
    return (read_atif if format_of(value) == "atif" else read_survey)(value, temperature)
