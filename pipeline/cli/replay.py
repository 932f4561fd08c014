"""`run replay`: stored turns of a run, rewarded and credited anew."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Iterations, Json, Root, RunName, Set


def replay(
    run: RunName,
    set_: Set = None,
    iterations: Iterations = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Score the evaluations on this split instead of the iterations."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The replay's name. Default: made from what changed.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="The last stage: reward, credit, partition or advantage (default)."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--all", help="Run every stage, and compare with the stored numbers bit for bit."),
    ] = False,
    root: Root = "runs",
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Train on the result too, from the checkpoint that sampled the first iteration."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Reward and credit the stored turns of a run anew, with other settings: no engine, no model.

    Only the stages run that a changed setting concerns. The run itself is not written to: results are under
    RUN/replays/LABEL, and the same command goes on where it was stopped. With --update the model is loaded
    and trained, and its checkpoints are there too.
    """
    from pipeline.replays.command import ReplayOptions, run_replay

    options = ReplayOptions(
        iterations=iterations,
        split=split,
        label=label,
        until=until,
        again=again,
        update=update,
        dry_run=dry_run,
        as_json=as_json,
    )
    run_replay(run, root, set_ or [], options)
