"""`reward-model train`: a model of which play is better, from stored plays."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Json, Root, Set


def train(
    runs: Annotated[
        list[str], typer.Argument(help="The runs, by name under the root, path or URL, or `latest`.")
    ],
    base: Annotated[
        str,
        typer.Option(
            "--base", "-b", help="What it begins with: a model that ships, a folder, a URL or a hub id."
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="The model's folder: a name under the root, a path or URL.")
    ],
    split: Annotated[
        str | None,
        typer.Option("--split", help="Plays of evaluations on this split, in the place of iterations."),
    ] = None,
    set_: Set = None,
    root: Root = "runs",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a model of which of two plays of a task is better, from plays that are stored with their returns.

    Pairs of plays of one task are what it learns from, whole tasks are held out, and its accuracy on them
    stands beside rankers that only look at length, turns or format. `[reward_model]` of the first run's
    settings says how. The same command goes on where it was stopped.
    """
    from pipeline.reward_model.command import train_model

    train_model(
        runs,
        base,
        out,
        root=root,
        split=split,
        overrides=set_ or [],
        dry_run=dry_run,
        as_json=as_json,
    )
