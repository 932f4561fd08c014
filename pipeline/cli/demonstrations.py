"""`demonstrations`: stored turns as a file of chats to imitate."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Iterations, Json, Replay, Root, RunName, Split


def demonstrations(
    where: Annotated[
        str,
        typer.Option(
            "--where", "-w", help="Turns that a condition chooses: \"role = 'reader' and reward >= 1\"."
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The new file: one chat a line.")],
    run: RunName = "latest",
    iterations: Iterations = None,
    split: Split = None,
    replay: Replay = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write stored turns as demonstrations for engine = "demonstrations" or another trainer.

    Each turn that the condition of --where chooses becomes a chat that ends in its reply, each chat once;
    columns are those of `show --where`.
    """
    from pipeline.store.runs import find_run
    from pipeline.store.shelf import shelf_of
    from pipeline.views.demonstrations import write_demonstrations
    from pipeline.views.output import print_json, print_lines

    shelf = shelf_of(find_run(root, run), split=split, replay=replay)
    written = write_demonstrations(shelf, where, out, iterations)
    if as_json:
        print_json({"file": written.file, "chats": written.chats, "left_out": dict(written.left_out)})
    else:
        print_lines(written.lines())
