"""`run replay`: stored turns of a run, rewarded and credited anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from pipeline.cli.options import DryRun, Iterations, Json, Root, RunName, Set
from workflows.errors import UsageError


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
    counterfactual: Annotated[
        str | None,
        typer.Option(
            "--counterfactual",
            help="Play episodes again with one reply replaced: resample, drop, null, swap, paraphrase, mask, "
            "or with sets of what a reply reads: shapley; several with commas. Loads the weights that "
            "sampled them.",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", help="With --counterfactual: what an iteration may sample, on average. Default: all."
        ),
    ] = None,
    alternatives: Annotated[
        int | None,
        typer.Option("--alternatives", help="With --counterfactual resample: how many replies. Default: 1."),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            "--permutations",
            help="With --counterfactual shapley: orders of the inputs of a reply that are sampled, where all "
            "sets of them would take more plays. Default: 8.",
        ),
    ] = None,
    paraphrase: Annotated[
        str | None,
        typer.Option(
            "--paraphrase", help="With --counterfactual paraphrase: package.module:function, text to text."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Reward and credit the stored turns of a run anew, with other settings: no engine, no model.

    Only the stages run that a changed setting concerns. The run itself is not written to: results are under
    RUN/replays/LABEL, and the same command goes on where it was stopped. With --update the model is loaded
    and trained, and its checkpoints are there too. With --counterfactual stored episodes are played again
    with one reply replaced, and the table `interventions` under RUN/counterfactuals/LABEL says what came of
    it.
    """
    if counterfactual is not None:
        from pipeline.replays.counterfactual.command import run_counterfactual
        from pipeline.replays.counterfactual.plan import Asked

        others = {
            "--set": set_, "--split": split, "--until": until, "--all": again, "--update": update,
            "--dry-run": dry_run,
        }  # fmt: skip
        _refuse_beside("--counterfactual", others)
        asked = Asked(
            counterfactual,
            iterations,
            tokens,
            1 if alternatives is None else alternatives,
            paraphrase,
            label,
            permutations,
        )
        run_counterfactual(run, root, asked, as_json=as_json)
        return
    only = {
        "--tokens": tokens, "--alternatives": alternatives, "--permutations": permutations,
        "--paraphrase": paraphrase,
    }  # fmt: skip
    for name, value in only.items():
        if value is not None:
            raise UsageError(f"{name} has no effect without --counterfactual; leave it out")
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


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that say nothing beside this one.

    Raises:
        UsageError: naming the first of them.
    """
    for name, value in others.items():
        if value:
            raise UsageError(f"{name} can't be used with {option}; leave one of them out")
