"""`runs`: the list of runs, and the removal of one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipeline.cli.options import Json, Root


def runs(
    root: Root = "runs",
    remove: Annotated[
        str | None,
        typer.Option(
            "--remove", metavar="NAME", help="Remove this run, or this sweep without its runs, for good."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs under a root: how far each is, what came out last, its size, its sweep."""
    from pipeline.store.runs import list_runs, remove_run
    from pipeline.views.output import print_json, print_lines
    from pipeline.views.render import echo, make_console
    from pipeline.views.runs_table import runs_table
    from workflows.errors import UsageError

    if yes and remove is None:
        raise UsageError("--yes belongs to --remove NAME; name the run to remove")
    if remove is not None:
        if not yes and not sys.stdin.isatty():
            raise UsageError(f"--remove {remove} asks before it removes; without a terminal, add --yes")
        if not yes and not typer.confirm(f"Remove {root}/{remove} with all of its tables and checkpoints?"):
            print_lines(["nothing is removed"])
            return
        remove_run(root, remove)
        print_lines([f"removed {root.rstrip('/')}/{remove}"])
        return
    stored = list_runs(root)
    if as_json:
        print_json(stored)
        return
    # what reads a pipe wants whole lines, and a narrow terminal breaks them where it ends
    echo(make_console(width=None if sys.stdout.isatty() else 1000), runs_table(stored))
