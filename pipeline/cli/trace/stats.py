"""`trace stats`: what traces hold, counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from pipeline.cli.options import Iterations, Json, Replay, Root, Split
from pipeline.cli.trace.shared import printed


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

    stats = stats_of(_traces(source, root, iterations, split, replay))
    printed(as_json, stats.as_dict(), stats_lines(stats))


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
