"""`run ablate`: several settings of rewards and credit over the same stored turns."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Iterations, Json, Root, RunName


def ablate(
    run: RunName,
    variants: Annotated[
        str,
        typer.Option("--variants", help="A TOML file with a table [variants.<name>] of settings for each."),
    ],
    iterations: Iterations = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The ablation's name. Default: that of the file.")
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=0, help="How many disputed episodes to list.")
    ] = 10,
    root: Root = "runs",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compare several settings of rewards and credit over the same stored turns.

    Each variant is a replay under RUN/replays/LABEL/VARIANT, and a run in MLflow.
    """
    from pipeline.replays.ablation.command import run_ablate

    run_ablate(
        run,
        root,
        variants,
        iterations=iterations,
        label=label,
        shown=episodes,
        dry_run=dry_run,
        as_json=as_json,
    )
