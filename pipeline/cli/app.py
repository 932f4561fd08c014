"""The command line. Commands are thin: what they do is in `pipeline.cli.jobs`, imported when it is needed."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from pipeline.cli import experiments
from pipeline.cli.options import Config, DryRun, Json, Replay, Root, RunName, Set, Split
from workflows.errors import CadreError, UsageError

Grades = Literal["qa", "math", "code"]

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


@app.command()
def check(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Check settings, plug-ins, graph, data, memory and what this machine has; start nothing."""
    from pipeline.cli import jobs

    jobs.check(config, set_ or [], as_json)


@run_app.command("iteration")
def run_iteration(
    config: Config = "pipeline.toml",
    set_: Set = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new run, whatever the last one's state.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Run the next iteration of the run that the settings name, or finish an unfinished one."""
    from pipeline.cli import jobs

    jobs.run_iteration(config, set_ or [], new=new, dry_run=dry_run)


@run_app.command("train")
def run_train(
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many iterations the run has at the end.")
    ],
    config: Config = "pipeline.toml",
    set_: Set = None,
    overfit: Annotated[
        bool,
        typer.Option("--overfit", help="Train on one group until it is solved: the first smoke test."),
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new run, whatever the last one's state.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Run iterations one after another, with engines and trainers kept up. The same command goes on
    where it was stopped; [evaluate] every = K evaluates on the way."""
    from pipeline.cli import jobs

    jobs.train(config, set_ or [], iterations, overfit=overfit, new=new, dry_run=dry_run)


@run_app.command("evaluate")
def run_evaluate(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Evaluate the run that the settings name on [evaluate] split, at the weights that it has now."""
    from pipeline.cli import jobs

    jobs.evaluate(config, set_ or [], as_json=as_json)


run_app.command("replay")(experiments.replay)
run_app.command("ablate")(experiments.ablate)
run_app.command("sweep")(experiments.sweep)
app.command("compare")(experiments.compare)


@app.command()
def export(
    folder: Annotated[str, typer.Argument(help="The new folder to write.")],
    run: Annotated[str, typer.Option("--run", "-r", help="A path, a URL, a name under the root.")] = "latest",
    model: Annotated[str | None, typer.Option("--model", help="Default: the only one.")] = None,
    replay: Replay = None,
    version: Annotated[
        str, typer.Option("--version", help="A number, `latest`, or `best` (of the evaluations).")
    ] = "latest",
    merge: Annotated[bool, typer.Option("--merge", help="Put an adapter into its base's weights.")] = False,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write a trained model as a Hugging Face folder for transformers and vLLM; an adapter as PEFT does.
    With --replay, one that a replay with --update trained."""
    from pipeline.cli import jobs

    jobs.export(run, root, folder, replay=replay, model=model, version=version, merge=merge, as_json=as_json)


@app.command()
def show(
    run: RunName = "latest",
    iteration: Annotated[int | None, typer.Option("--iteration", "-i", help="Default: the newest.")] = None,
    split: Split = None,
    replay: Replay = None,
    episode: Annotated[str | None, typer.Option("--episode", "-e", help="One episode, whole.")] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=0, help="How many to list: 3 episodes, or 20 turns of --where."),
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
    """Show what a run did: its accounts, its updates, and episodes as readable conversations. With
    --where, the turns that a condition on their columns chooses; --json prints one turn a line. The same of
    an evaluation (--split), or of what a replay made (--replay)."""
    from pipeline.cli import jobs

    jobs.show(
        run,
        root,
        iteration=iteration,
        split=split,
        replay=replay,
        episode=episode,
        episodes=episodes,
        where=where,
        full=full,
        as_json=as_json,
    )


@app.command()
def report(
    run: RunName = "latest",
    iteration: Annotated[
        int | None, typer.Option("--iteration", "-i", help="One iteration; default: the whole run.")
    ] = None,
    split: Split = None,
    replay: Replay = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="The most it has (2,000); of more it has a spread."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The file; default: in the run's folder report/.")
    ] = None,
    root: Root = "runs",
    as_json: Json = False,
) -> None:
    """Write one HTML page that shows what happened: the graph, the accounts, every episode as a
    conversation, tokens coloured by logprob gap or advantage. It needs no network and no server."""
    from pipeline.report.command import report

    report(
        run,
        root,
        iteration=iteration,
        split=split,
        replay=replay,
        episodes=episodes,
        out=out,
        as_json=as_json,
    )


@app.command()
def runs(root: Root = "runs", as_json: Json = False) -> None:
    """List the runs under a root."""
    from pipeline.cli import jobs

    jobs.runs(root, as_json)


@app.command()
def init(
    folder: Annotated[str, typer.Argument(help="The new folder.")],
    package: Annotated[
        str | None, typer.Option("--package", help="Name of its package; default: from the folder's name.")
    ] = None,
) -> None:
    """Write a small working project of your own: workflow, reward, data, settings, a test, a README."""
    from pipeline.project.init import init

    init(folder, package)


@app.command()
def ui(
    root: Root = "runs",
    uri: Annotated[str | None, typer.Option("--uri", help="The record, if it lies elsewhere.")] = None,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Default: 5000, or the next free one.")
    ] = None,
    anyone: Annotated[
        bool, typer.Option("--anyone", help="Let --host be open to other machines; there is no password.")
    ] = False,
) -> None:
    """Serve MLflow's page of the runs under a root, on this machine only, until Ctrl-C."""
    from pipeline.cli.ui import show_ui

    show_ui(root, uri, host, port, anyone=anyone, say=lambda line: typer.echo(line))


@app.command("serve-retriever")
def serve_retriever(
    corpus: Annotated[str, typer.Option("--corpus", help="A built-in name or a .jsonl or .parquet file.")],
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; others than loopback are open to all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
) -> None:
    """Serve a corpus over HTTP to the retrievers of runs, until Ctrl-C."""
    from pipeline.cli.serve_retriever import serve

    serve(corpus, host, port, lambda line: typer.echo(line))


@app.command()
def grade(
    kind: Annotated[Grades, typer.Argument(help="What the lines hold.")],
    file: Annotated[str, typer.Argument(help="JSON lines, or - for stdin.")],
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", help="qa: strict, official_hotpot, official_squad; math: whole, number, none."
        ),
    ] = None,
    sandbox: Annotated[str, typer.Option("--sandbox", help="code: auto, bwrap, none.")] = "auto",
    exact: Annotated[
        bool,
        typer.Option("--exact", help="math: no decimal for what it rounds to; code: true is not 1."),
    ] = False,
) -> None:
    """Grade answers or programs: JSON lines in, the same lines with verdicts out, a summary on stderr."""
    from pipeline.cli.grade import grade

    grade(kind, file, mode, sandbox, exact)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed run, 2 wrong usage, 130 or 143 stopped."""
    sys.exit(_guarded())


def _guarded() -> int:
    from pipeline.run.signals import Stopped, stop_behind

    try:
        app()
    except UsageError as error:
        return _fail(error, 2)
    except CadreError as error:
        return _fail(error, 1)
    except Stopped as stopped:
        return _fail(stopped, stopped.exit_code)
    except SystemError as error:
        stopped_in = stop_behind(error)
        if stopped_in is None:
            raise
        return _fail(stopped_in, stopped_in.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on from the last finished stage", 130)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 1
    return 0


def _fail(message: object, code: int) -> int:
    from pipeline.views.render import visible  # a message may quote what a model or a file says

    sys.stderr.write(f"error: {visible(str(message))}\n")
    return code
