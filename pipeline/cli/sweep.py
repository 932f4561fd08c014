"""`run sweep`: the same team trained at several points of its settings."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pipeline.cli.options import Config, DryRun, Set, Votes, VoteTokens, with_votes


def sweep(
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many iterations each run has at the end.")
    ],
    what: Annotated[
        Literal["sharing"] | None,
        typer.Argument(help="`sharing` sweeps the sharing regimes; otherwise pass --grid."),
    ] = None,
    regimes: Annotated[
        str | None,
        typer.Option("--regimes", help="full,separate,adapters,groups, or groups:NAME=ROLE+ROLE:NAME=ROLE."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", help="Values of one setting: --grid ppo.learning_rate=1e-6,1e-5 (repeatable)."
        ),
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
    votes: Votes = None,
    vote_tokens: VoteTokens = None,
    dry_run: DryRun = False,
) -> None:
    """Train the same team under several sharing regimes or settings, each with the same tasks, seeds and
    episodes, one run after another, and compare them. The same command goes on where it was stopped."""
    from pipeline.experiments.sweep import SweepOptions, sweep_command

    options = SweepOptions(
        iterations=iterations,
        sharing=what == "sharing",
        regimes=regimes,
        grid=tuple(grid or ()),
        set_for=tuple(set_for or ()),
        seeds=seeds,
        name=name,
        dry_run=dry_run,
    )
    sweep_command(config, with_votes(set_, votes, vote_tokens), options)
