"""`replace`: another model in the place of one of a team."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Json, Root, RunName, Set


def replace(
    run: RunName,
    model: Annotated[str, typer.Option("--model", "-m", help="The model whose place is taken.")],
    with_: Annotated[
        str,
        typer.Option("--with", help="The newcomer: a model that ships, a folder, a URL or a hub id."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The new run's name. Default: the run's, with the model's.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            help="Which steps are made: format, swap, distill, align, settle, with commas. Default: all, or "
            "replace.steps.",
        ),
    ] = None,
    set_: Set = None,
    root: Root = "runs",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Put another model in the place of one of a team, safely, in a new run that knows its parent.

    The newcomer is checked, put in cold and measured, taught what its predecessor said, trained among its
    teammates within a radius, and judged on tasks that train nobody: where the team may have lost more than
    replace.eps, all is taken back. The run itself is not written to. The same command goes on where it was
    stopped.
    """
    from pipeline.replacement.command import ReplaceOptions, run_replace

    chosen = None if steps is None else [step.strip() for step in steps.split(",") if step.strip()]
    options = ReplaceOptions(name, chosen, set_ or [], dry_run, as_json)
    run_replace(run, root, model, with_, options)
