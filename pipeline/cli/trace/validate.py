"""`trace validate`: files of traces, judged strictly."""

from __future__ import annotations

import typer

from pipeline.cli.options import Json
from pipeline.cli.trace.shared import Files, OfFormat, counted, printed


def validate(files: Files, format: OfFormat = None, as_json: Json = False) -> None:
    """Judge traces strictly, and name the rule that each bad one breaks.

    Exit code 1 where a trace is refused. JSON lines are read one at a time, whatever their number.
    """
    from pipeline.traces.corpus import validate as judge
    from pipeline.traces.files import files_of
    from pipeline.views.traces import verdict_lines

    with counted("validate", "event") as advance:
        verdict = judge(files_of(files), format, advance)
    printed(as_json, verdict.as_dict(), verdict_lines(verdict))
    if verdict.refused:
        raise typer.Exit(1)
