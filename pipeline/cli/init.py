"""`init`: a new project of one's own."""

from __future__ import annotations

from typing import Annotated

import typer


def init(
    folder: Annotated[str, typer.Argument(help="The new folder.")],
    package: Annotated[
        str | None, typer.Option("--package", help="Name of its package; default: from the folder's name.")
    ] = None,
) -> None:
    """Write a small working project of your own: workflow, reward, data, settings, a test, a README."""
    from pipeline.project.init import new_project, next_steps
    from pipeline.views.output import print_lines

    name, files = new_project(folder, package)
    print_lines([f"wrote {folder}: package {name}, {len(files)} files", "", *next_steps(folder)])
