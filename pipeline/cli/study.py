"""`run study`: workflows × sharing regimes × seeds side by side, with the controls that teams must beat."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Set


def study(
    file: Annotated[str, typer.Argument(help="The study: settings of a run, and a section [study].")],
    set_: Set = None,
    dry_run: DryRun = False,
    only_report: Annotated[
        bool, typer.Option("--report", help="Train nothing: write the page of what is there now.")
    ] = False,
) -> None:
    """Train several workflows under several sharing regimes, each with several seeds, and compare their best
    and last checkpoints on a test split, with gains over controls. The same command goes on where it was
    stopped."""
    from pipeline.experiments.study.course import study_command

    study_command(file, set_ or [], only_plan=dry_run, only_report=only_report)
