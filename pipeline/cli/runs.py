"""`runs`: the list of runs, another name for one, and the removal of one."""

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
    rename: Annotated[
        tuple[str, str] | None,
        typer.Option("--rename", metavar="NAME NEW", help="Give this run another name."),
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

    if rename is not None and remove is not None:
        raise UsageError("--rename and --remove are two commands; give one of them")
    if rename is not None:
        _rename(root, *rename)
        return
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


def _rename(root: str, name: str, new: str) -> None:
    from pipeline.replays.rename import rename_pages
    from pipeline.store.rename import rename_run
    from pipeline.store.run import Run
    from pipeline.views.output import print_lines

    before = Run(root, name)
    run = rename_run(root, name, new)
    print_lines(
        [
            f"run {name!r} is called {new!r} now: {run.folder.url}",
            rename_pages(run, before),
            f'settings that go on with it name it so: [run] name = "{new}", or --set run.name={new}',
        ]
    )
