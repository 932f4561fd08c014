"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Config = Annotated[str, typer.Option("--config", "-c", help="The settings file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one setting: --set rollout.group_size=4 (TOML values; repeatable)."),
]
RunName = Annotated[str, typer.Argument(help="A path, a URL, a name under the root, or `latest`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Root = Annotated[str, typer.Option("--root", help="Where runs lie.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")]
Iterations = Annotated[
    str | None,
    typer.Option("--iterations", help="A:B is from A to before B, as in Python. Default: all."),
]
Split = Annotated[
    str | None, typer.Option("--split", help="An evaluation on this split; --iteration N says which.")
]
Replay = Annotated[
    str | None,
    typer.Option(
        "--replay", help="The label of a replay of the run, or ABLATION/VARIANT, instead of the run."
    ),
]
