"""`trace export`: a run's episodes as a file of traces."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pipeline.cli.options import Iterations, Json, Replay, Root, Split
from pipeline.cli.trace.shared import counted, printed

FormatName = Literal["atif", "survey", "otel"]
ContentName = Literal["none", "hash", "inline"]


def export(
    run: Annotated[
        str, typer.Argument(help="The run: its name under the root, its path or URL, or `latest`.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The new file, one trace a line: traces.jsonl.")],
    format: Annotated[
        FormatName,
        typer.Option(
            "--format",
            "-f",
            help="atif (trajectories), survey (events and edges), or otel (spans of OpenTelemetry).",
        ),
    ] = "atif",
    content: Annotated[
        ContentName,
        typer.Option(
            "--content", help="Of texts, token ids and logprobs: none, hashes in their place, or all inline."
        ),
    ] = "inline",
    iterations: Iterations = None,
    split: Split = None,
    replay: Replay = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write a run's episodes as traces, with rewards and credit, to a file of JSON lines.

    `trace import` makes the same tables of an ATIF or survey file again, as far as --content let them.
    """
    from pipeline.store.runs import find_run
    from pipeline.store.shelf import shelf_of
    from pipeline.traces.exporting import export as write
    from pipeline.views.traces import exported_lines

    shelf = shelf_of(find_run(root, run), split=split, replay=replay)
    with counted("export", "trace") as advance:
        done = write(shelf, out, format, content, iterations, advance)
    printed(as_json, done.as_dict(), exported_lines(done))
