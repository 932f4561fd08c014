"""`show`: what a run did, in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Replay, Root, RunName, Split


def show(
    run: RunName = "latest",
    iteration: Annotated[int | None, typer.Option("--iteration", "-i", help="Default: the newest.")] = None,
    split: Split = None,
    replay: Replay = None,
    episode: Annotated[
        str | None, typer.Option("--episode", "-e", help="The id of one episode, which is shown alone.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes", "-n", min=0, help="How many to list. Default: 3 episodes, or 20 turns of --where."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", "-w", help="Turns that a condition chooses: \"role = 'reader' and reward < 0.2\"."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Whole prompts and tool results.")] = False,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Show what a run did: its accounts, its updates, and episodes as readable conversations.

    With --where, show the turns that a condition on their columns chooses; --json then prints one turn a
    line. --split shows an evaluation instead of an iteration, --replay what a replay made.
    """
    from pipeline.store.runs import find_run
    from pipeline.store.shelf import shelf_of
    from pipeline.views.stored import EPISODES, print_place
    from pipeline.views.where import print_where
    from workflows.errors import UsageError

    if where is not None and episode is not None:
        raise UsageError(
            f"--where chooses turns and --episode one episode; pass --where \"episode_id = '{episode}'\""
        )
    if episode is not None and episodes is not None:
        raise UsageError(
            "--episodes says how many to list, and --episode shows one alone; leave one of them out"
        )
    shelf = shelf_of(find_run(root, run), split=split, replay=replay)
    if where is not None:
        print_where(shelf, iteration, where, limit=episodes, full=full, as_json=as_json)
        return
    count = EPISODES if episodes is None else episodes
    print_place(shelf, iteration, episode=episode, episodes=count, full=full, as_json=as_json)
