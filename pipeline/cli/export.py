"""`export`: a trained model as a folder for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Json, Replay, Root


def export(
    folder: Annotated[str, typer.Argument(help="The new folder to write.")],
    run: Annotated[
        str, typer.Option("--run", "-r", help="The run: its name under the root, its path or URL.")
    ] = "latest",
    model: Annotated[
        str | None, typer.Option("--model", help="Which model; default: the only one of the run.")
    ] = None,
    replay: Replay = None,
    version: Annotated[
        str,
        typer.Option(
            "--version",
            help="A number, `latest`, `best` (of the evaluations), or `result`: the best if "
            "evaluate.patience ended the training, else the latest.",
        ),
    ] = "result",
    merge: Annotated[
        bool, typer.Option("--merge", help="Write an adapter's base with the adapter merged into it.")
    ] = False,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write a trained model as a Hugging Face folder for transformers and vLLM; an adapter as PEFT does.
    With --replay, write one that a replay with --update trained."""
    from pipeline.store.export import export_model
    from pipeline.store.runs import find_run
    from pipeline.views.output import print_json, print_lines

    written = export_model(
        find_run(root, run), folder, replay=replay, model_id=model, version=version, merge=merge
    )
    if as_json:
        print_json(written)
    else:
        print_lines(f"{name:<10}{value}" for name, value in written.items())
