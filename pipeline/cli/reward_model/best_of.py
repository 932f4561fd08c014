"""`reward-model best-of`: what choosing the best of n stored plays by a reward model is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Root, RunName


def best_of(
    model: Annotated[str, typer.Argument(help="The reward model: a name under the root, a path or URL.")],
    run: RunName,
    sizes: Annotated[
        str, typer.Option("--best-of", "-n", help="How many plays one is chosen from: numbers, with commas.")
    ] = "1,2,4,8",
    split: Annotated[
        str | None,
        typer.Option("--split", help="Plays of evaluations on this split, in the place of iterations."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", help="What plays are worth: a reward or a metric. Default: as in training."),
    ] = None,
    gpus: Annotated[float, typer.Option("--gpus", min=0, help="GPUs that compute scores.")] = 0.0,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Choose the best of n stored plays of each task by a reward model, and say what that is worth.

    Tasks that trained the model are left out. Beside it stand any play, the majority of n answers where
    they can vote, and the best play, which no ranker can pass.
    """
    from pipeline.plan.rewards import model_folder
    from pipeline.reward_model.best_of import (
        ballots_of,
        collected,
        ranked_plays,
        ranking_page,
        trained_tasks,
    )
    from pipeline.store.runs import find_run
    from pipeline.views.output import print_pages
    from stages.reward_model.model import read_model
    from stages.reward_model.scorer import ModelScorer
    from workflows.errors import UsageError

    words = [word.strip() for word in sizes.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--best-of is {sizes!r}; give numbers from 1 up, with commas: 1,2,4,8")
    reward_model, found = read_model(model_folder(model, root)), find_run(root, run)
    plays = collected(found, reward_model, split, value)
    trained = trained_tasks(reward_model)
    left = [play for play in plays.plays if play.task not in trained]
    scores = dict.fromkeys((play.play for play in plays.plays), 0.0)
    of_left = ModelScorer(reward_model, num_gpus=gpus)([play.text for play in left])
    scores |= zip((play.play for play in left), of_left, strict=True)
    ranking = ranked_plays(
        plays.plays,
        [scores[play.play] for play in plays.plays],
        ballots_of(found, split),
        trained,
        [int(word) for word in words],
    )
    ranking.accounts.insert(0, plays.account)
    print_pages([ranking_page(reward_model, found, ranking)], ranking.as_dict(), as_json)
