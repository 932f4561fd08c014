"""`trace import`: files of traces as a run."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Root
from pipeline.cli.trace.shared import Files, OfFormat, counted, printed


def import_(
    files: Files,
    run: Annotated[str, typer.Option("--run", "-r", help="The new run: its name under the root.")],
    format: OfFormat = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", help="A file of tasks, joined by task id: its gold answers make grading possible."
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            help="How answers of other programs' replies are read: text (all), tag:NAME or json:KEY.",
        ),
    ] = None,
    answer_step: Annotated[
        str | None,
        typer.Option(
            "--answer-step", help="The step whose last reply answers. Default: what mostly comes last."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="The weights that sampled, whose token ids these are: `run replay --update` may then "
            "train on turns that have logprobs.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Of the sampler, where traces do not say it."),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out traces that break a rule, and count them.")
    ] = False,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Make a run of traces: to be shown, reported, replayed with other rewards, ablated and imitated.

    Every trace is judged strictly first, as `trace validate` does. Files are read twice, and memory is that
    of one part of a table.
    """
    from pipeline.traces.files import files_of
    from pipeline.traces.importing import Options, answer_parser, import_traces
    from pipeline.views.traces import imported_lines

    options = Options(format, tasks, answer_parser(answer), answer_step, checkpoint, temperature, skip)
    with counted("import", "trace") as advance:
        done = import_traces(files_of(files), root, run, options, advance)
    printed(as_json, done.as_dict(), imported_lines(done))
