"""`compare`: several runs and sweeps side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Root


def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs and sweeps: names under the root, paths or URLs.")],
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for the plots and their numbers. Default: under the root."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=1, help="How many iterations the first and last returns are means of. Default: 5."
        ),
    ] = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Put runs side by side: what differs in their settings, what came out, what it cost, and plots."""
    from pipeline.experiments.compare import compare_command

    compare_command(runs, root, out=out, last=last, as_json=as_json)
