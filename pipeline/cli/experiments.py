"""Commands over stored runs and over several: replay, ablate, sweep, compare; `cli.app` adds them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pipeline.cli.options import Config, DryRun, Iterations, Json, Root, RunName, Set


def replay(
    run: RunName,
    set_: Set = None,
    iterations: Iterations = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Score the evaluations on this split instead.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The replay's name. Default: what changed.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="The last stage: reward, credit, partition, advantage (default)."),
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

    Only the stages run that a changed setting concerns. The run is not written to: results are under
    RUN/replays/LABEL, and the same command goes on where it was stopped. With --update the model is loaded
    and trained, and its checkpoints are there too.
    """
    from pipeline.replays.command import run_replay

    run_replay(
        run,
        root,
        set_ or [],
        iterations=iterations,
        split=split,
        label=label,
        until=until,
        again=again,
        update=update,
        dry_run=dry_run,
        as_json=as_json,
    )


def ablate(
    run: RunName,
    variants: Annotated[
        str,
        typer.Option("--variants", help="A TOML file with a [variants.<name>] table of settings for each."),
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
    from pipeline.replays.command import run_ablate

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


def sweep(
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many iterations each run has at the end.")
    ],
    what: Annotated[
        Literal["sharing"] | None, typer.Argument(help="`sharing` sweeps the regimes; else give --grid.")
    ] = None,
    regimes: Annotated[
        str | None,
        typer.Option("--regimes", help="full,separate,adapters,groups, or groups:NAME=ROLE+ROLE:NAME=ROLE."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="Any setting: --grid ppo.learning_rate=1e-6,1e-5 (repeatable)."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="0,1,2: every point once with each. Default: run.seed.")
    ] = None,
    set_for: Annotated[
        list[str] | None,
        typer.Option("--set-for", help="One setting for one regime: adapters:ppo.learning_rate=1e-4."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The sweep's name under the root.")] = None,
    config: Config = "pipeline.toml",
    set_: Set = None,
    dry_run: DryRun = False,
) -> None:
    """Train the same team under several sharing regimes or settings, each with the same tasks, seeds and
    episodes, one run after another, and compare them. The same command goes on where it was stopped."""
    from pipeline.experiments.sweep import sweep_command

    sweep_command(
        config,
        set_ or [],
        dry=dry_run,
        iterations=iterations,
        sharing=what == "sharing",
        regimes=regimes,
        grid=grid or [],
        set_for=set_for or [],
        seeds=seeds,
        name=name,
    )


def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs and sweeps: names under the root, paths or URLs.")],
    out: Annotated[
        str | None, typer.Option("--out", help="Where plots and their numbers go. Default: under the root.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, help="Iterations behind the first and last returns. Default: 5."),
    ] = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Put runs side by side: what differs in their settings, what came out, what it cost, and plots."""
    from pipeline.experiments.compare import compare_command

    compare_command(runs, root, out=out, last=last, as_json=as_json)
