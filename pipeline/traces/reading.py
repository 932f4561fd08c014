"""Files of traces as traces of the survey's schema, whatever format they are of: for who counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.traces.extension import Source
from pipeline.traces.files import documents
from pipeline.traces.format import format_of, problems_of, read
from pipeline.traces.imported import as_episode
from pipeline.traces.survey.write import survey_trace
from workflows.errors import UsageError


def traces_of_files(files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """All traces of the files, one at a time.

    Raises:
        UsageError: a trace breaks a rule; `trace validate` lists all that do.
    """
    for file in files:
        for document in documents(file):
            problems = [document.fault] if document.fault else problems_of(document.value)
            if problems:
                raise UsageError(f"{document.where}: {problems[0]}; `trace validate` lists all such traces")
            if format_of(document.value) == "survey":
                yield document.value
                continue
            try:
                imported = read(document.value)
            except ValueError as error:
                raise UsageError(f"{document.where}: {error}") from None
            yield survey_trace(as_episode(imported), Source("", {}), "inline")
