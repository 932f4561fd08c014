"""`trace`: episodes as traces that other programs read, and theirs as runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli.options import Iterations, Json, Replay, Root, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FormatName = Literal["atif", "survey", "otel"]
ReadName = Literal["atif", "survey"]
ContentName = Literal["none", "hash", "inline"]
Files = Annotated[
    list[str],
    typer.Argument(help="Files of traces (.jsonl, .json), folders of them, or patterns.", show_default=False),
]
OfFormat = Annotated[
    ReadName | None,
    typer.Option("--format", "-f", help="Hold every trace to this format. Default: as its keys tell."),
]

trace_app = typer.Typer(
    help="Traces of episodes: written for other programs, read from them, checked and counted.",
    no_args_is_help=True,
)


@trace_app.command("export")
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
    with _progress("export", "trace") as advance:
        done = write(shelf, out, format, content, iterations, advance)
    _print(as_json, done.as_dict(), exported_lines(done))


@trace_app.command("import")
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
    with _progress("import", "trace") as advance:
        done = import_traces(files_of(files), root, run, options, advance)
    _print(as_json, done.as_dict(), imported_lines(done))


@trace_app.command("validate")
def validate(files: Files, format: OfFormat = None, as_json: Json = False) -> None:
    """Judge traces strictly, and name the rule that each bad one breaks.

    Exit code 1 where a trace is refused. JSON lines are read one at a time, whatever their number.
    """
    from pipeline.traces.corpus import validate as judge
    from pipeline.traces.files import files_of
    from pipeline.views.traces import verdict_lines

    with _progress("validate", "event") as advance:
        verdict = judge(files_of(files), format, advance)
    _print(as_json, verdict.as_dict(), verdict_lines(verdict))
    if verdict.refused:
        raise typer.Exit(1)


@trace_app.command("stats")
def stats(
    source: Annotated[
        list[str],
        typer.Argument(help="A run (its name under the root, its path, or `latest`), or files of traces."),
    ],
    iterations: Iterations = None,
    split: Split = None,
    replay: Replay = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Count what traces hold: events, agents, depth, width, edges, acts, and what they lack."""
    from pipeline.traces.stats import stats_of
    from pipeline.views.traces import stats_lines

    counted = stats_of(_traces(source, root, iterations, split, replay))
    _print(as_json, counted.as_dict(), stats_lines(counted))


def _traces(
    source: list[str], root: str, iterations: str | None, split: str | None, replay: str | None
) -> Iterator[Mapping[str, Any]]:
    """Traces of the survey's schema: of the files, or of a run."""
    from pipeline.store.runs import find_run
    from pipeline.store.shelf import shelf_of
    from pipeline.traces.exporting import exported_traces
    from pipeline.traces.files import SUFFIXES, files_of
    from pipeline.traces.reading import traces_of_files
    from workflows.errors import UsageError

    if any(name.endswith(SUFFIXES) or "*" in name for name in source):
        given = {"--iterations": iterations, "--split": split, "--replay": replay}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} {value} has no effect on files of traces; leave it out")
        yield from traces_of_files(files_of(source))
        return
    if len(source) > 1:
        raise UsageError(f"expected one run or several files of traces, got {', '.join(source)}")
    shelf = shelf_of(find_run(root, source[0]), split=split, replay=replay)
    yield from exported_traces(shelf, iterations)


def _print(as_json: bool, values: Mapping[str, Any], lines: Iterator[str]) -> None:
    from pipeline.views.output import print_json, print_lines

    if as_json:
        print_json(values)
    else:
        print_lines(lines)


@contextmanager
def _progress(what: str, unit: str) -> Iterator[Callable[..., None]]:
    """Counts on a terminal; elsewhere the lines at the end say enough."""
    import sys

    if not sys.stderr.isatty():
        yield lambda amount=1: None
        return
    from pipeline.views.progress import RichProgress

    progress = RichProgress()
    progress.start(f"trace {what}", None, unit)
    try:
        yield progress.advance
    finally:
        progress.finish()
