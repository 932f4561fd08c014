"""`grade`: the graders of rewards as a filter, JSON lines in, the same lines with verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Literal

import typer

Kind = Literal["qa", "math", "code"]


def grade(
    kind: Annotated[Kind, typer.Argument(help="What the lines hold.")],
    file: Annotated[str, typer.Argument(help="JSON lines, or - for stdin.")],
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", help="qa: strict, official_hotpot, official_squad; math: whole, number, none."
        ),
    ] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", help="code: auto (the default), bwrap, none.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="math: no decimal for what it rounds to; code: true is not 1."),
    ] = False,
) -> None:
    """Grade answers or programs: JSON lines in, the same lines with verdicts out, a summary on stderr.

    A line that can't be graded carries `error` and stops no other; the exit code is then 1, and 0 where all
    lines were graded, whatever their verdicts.
    """
    import os
    import sys

    from rewards.grading.lines import Tally, encoded, graded, grader_of

    grader, num_threads = grader_of(kind, mode, sandbox, exact)
    tally = Tally(kind)
    try:
        with _lines(file) as lines, _progress(kind) as advance:
            for line in graded(lines, grader, num_threads):
                tally.add(line)
                sys.stdout.buffer.write(encoded(line) + b"\n")
                sys.stdout.buffer.flush()
                advance()
    except BrokenPipeError:  # the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(tally.summary() + "\n")
    if tally.ungraded:
        raise typer.Exit(1)


@contextmanager
def _lines(path: str) -> Iterator[IO[bytes]]:
    import sys

    from workflows.errors import UsageError

    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UsageError(
            f"can't read {path}: {error.strerror}; pass a file of JSON lines, or - for stdin"
        ) from None
    with file:
        yield file


@contextmanager
def _progress(kind: Kind) -> Iterator[Callable[[], None]]:
    import sys

    if not sys.stderr.isatty():
        yield lambda: None
        return
    from pipeline.views.progress import RichProgress

    progress = RichProgress()
    progress.start(f"grade {kind}", None, "line")
    try:
        yield progress.advance
    finally:
        progress.finish()
