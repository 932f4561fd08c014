"""What the verbs of `trace` have in common: options, how they print, and how they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

ReadName = Literal["atif", "survey"]
Files = Annotated[
    list[str],
    typer.Argument(help="Files of traces (.jsonl, .json), folders of them, or patterns.", show_default=False),
]
OfFormat = Annotated[
    ReadName | None,
    typer.Option("--format", "-f", help="Hold every trace to this format. Default: as its keys tell."),
]


def printed(as_json: bool, values: Mapping[str, Any], lines: Iterator[str]) -> None:
    from pipeline.views.output import print_json, print_lines

    if as_json:
        print_json(values)
    else:
        print_lines(lines)


@contextmanager
def counted(what: str, unit: str) -> Iterator[Callable[..., None]]:
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
