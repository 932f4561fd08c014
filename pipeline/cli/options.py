"""Options that several verbs have."""

from __future__ import annotations

from typing import Annotated

import typer

Config = Annotated[str, typer.Option("--config", "-c", help="The settings file.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override one setting: --set rollout.group_size=4 (TOML values; repeatable). KEY= takes a key "
        "out, KEY+=VALUE appends to a list, a name with dots stands in quotes.",
    ),
]
New = Annotated[
    bool, typer.Option("--new", help="Start a new run beside the one of that name, whatever its state.")
]
RunName = Annotated[
    str, typer.Argument(help="The run: its name under the root, its path or URL, or `latest`.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Root = Annotated[str, typer.Option("--root", help="Folder or URL that holds the runs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would run, and start nothing.")]
Redo = Annotated[
    str | None,
    typer.Option(
        "--redo",
        help="Make a stage of the unfinished iteration again, and those after it, with the settings and "
        "sources of now: sample, rollout, reward, credit, partition, score, advantage, update, or another of "
        "those that `check` lists.",
    ),
]
Iterations = Annotated[
    str | None,
    typer.Option(
        "--iterations", help="Which iterations: A:B is from A to before B, as in Python. Default: all."
    ),
]
Split = Annotated[
    str | None,
    typer.Option("--split", help="An evaluation on this split; --iteration N is the one after N iterations."),
]
Replay = Annotated[
    str | None,
    typer.Option(
        "--replay", help="The label of a replay of the run, or ABLATION/VARIANT, instead of the run."
    ),
]
Votes = Annotated[
    int | None,
    typer.Option(
        "--votes", min=2, help="Also play every task so often at a temperature, and let the answers vote."
    ),
]
VoteTokens = Annotated[
    int | None,
    typer.Option(
        "--vote-tokens",
        min=1,
        help="Budget of a vote: sampled tokens a task. Needs --votes or evaluate.vote.",
    ),
]


def with_votes(overrides: list[str] | None, votes: int | None, tokens: int | None) -> list[str]:
    """The overrides of settings with those that `--votes` and `--vote-tokens` stand for."""
    added = [f"evaluate.vote.answers={votes}"] if votes is not None else []
    return [*(overrides or []), *added, *([f"evaluate.vote.tokens={tokens}"] if tokens is not None else [])]
