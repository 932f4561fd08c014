"""`report`: one HTML page of a run, an iteration or an evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Replay, Root, RunName, Split


def report(
    run: RunName = "latest",
    iteration: Annotated[
        int | None, typer.Option("--iteration", "-i", help="One iteration; default: the whole run.")
    ] = None,
    split: Split = None,
    replay: Replay = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes",
            "-n",
            min=1,
            help="Maximum number of episodes in the page (default 2,000); above that, a sample spread over "
            "returns.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="The file, or a folder for it; default: report/ in the run's folder."
        ),
    ] = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write one HTML page that shows what happened: the graph, the accounts, every episode as a
    conversation, tokens coloured by logprob gap or advantage. It needs no network and no server."""
    from dataclasses import asdict

    from pipeline.report.write import EPISODES, lines_of, write_report
    from pipeline.store.runs import find_run
    from pipeline.views.output import print_json, print_lines

    written = write_report(
        find_run(root, run),
        iteration=iteration,
        split=split,
        replay=replay,
        episodes=EPISODES if episodes is None else episodes,
        out=out,
    )
    if as_json:
        print_json(asdict(written))
    else:
        print_lines(lines_of(written))
