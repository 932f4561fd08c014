"""The command line. Commands are thin: what they do is in `pipeline.jobs`, imported when it is needed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from workflows.errors import CadreError, UsageError

app = typer.Typer(
    name="cadre",
    help="Train teams of language models: the whole workflow is the unit of reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run_app = typer.Typer(help="Run a pipeline.", no_args_is_help=True)
app.add_typer(run_app, name="run")

Config = Annotated[str, typer.Option("--config", "-c", help="The settings file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one setting: --set rollout.group_size=4 (TOML values; repeatable)."),
]
RunName = Annotated[str, typer.Argument(help="A path, a URL, a name under the root, or `latest`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command()
def check(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Check settings, plug-ins, graph, data, memory and what this machine has; start nothing."""
    from pipeline import jobs

    jobs.check(config, set_ or [], as_json)


@run_app.command("iteration")
def run_iteration(
    config: Config = "pipeline.toml",
    set_: Set = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new run, whatever the last one's state.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
) -> None:
    """Run the next iteration of the run that the settings name, or finish an unfinished one."""
    from pipeline import jobs

    jobs.run_iteration(config, set_ or [], new=new, dry_run=dry_run)


@app.command()
def show(
    run: RunName = "latest",
    iteration: Annotated[int | None, typer.Option("--iteration", "-i", help="Default: the newest.")] = None,
    episode: Annotated[str | None, typer.Option("--episode", "-e", help="One episode, whole.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="How many episodes to list.")] = 3,
    full: Annotated[bool, typer.Option("--full", help="Whole prompts and tool results.")] = False,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Show what a run did: its accounts, its updates, and episodes as readable conversations."""
    from pipeline import jobs

    jobs.show(run, root, iteration=iteration, episode=episode, episodes=episodes, full=full, as_json=as_json)


@app.command()
def runs(
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs", as_json: Json = False
) -> None:
    """List the runs under a root."""
    from pipeline import jobs

    jobs.runs(root, as_json)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed run, 2 wrong usage, 130 or 143 stopped."""
    sys.exit(_guarded())


def _guarded() -> int:
    from pipeline.signals import Stopped

    try:
        app()
    except UsageError as error:
        return _fail(error, 2)
    except CadreError as error:
        return _fail(error, 1)
    except Stopped as stopped:
        return _fail(stopped, stopped.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on from the last finished stage", 130)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 1
    return 0


def _fail(message: object, code: int) -> int:
    sys.stderr.write(f"error: {message}\n")
    return code
