"""The command line. Commands are thin: what they do is in `pipeline.jobs`, imported when it is needed."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

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
Grades = Literal["qa", "math", "code"]
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
) -> None:
    """Run iterations one after another, with engines and trainers kept up. The same command goes on
    where it was stopped; [evaluate] every = K evaluates on the way."""
    from pipeline import jobs

    jobs.train(config, set_ or [], iterations, overfit=overfit, new=new, dry_run=dry_run)


@run_app.command("evaluate")
def run_evaluate(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Evaluate the run that the settings name on [evaluate] split, at the weights that it has now."""
    from pipeline import jobs

    jobs.evaluate(config, set_ or [], as_json=as_json)


@run_app.command("replay")
def run_replay(
    run: RunName,
    set_: Set = None,
    iterations: Annotated[
        str | None,
        typer.Option("--iterations", help="A:B is from A to before B, as in Python. Default: all."),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Score the evaluations on this split instead.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The replay's name. Default: what changed.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="The last stage: reward, credit, partition, advantage (default)."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--all", help="Run every stage, and compare with the stored numbers bit for bit."),
    ] = False,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Reward and credit the stored turns of a run anew, with other settings: no engine, no model.

    Only the stages run that a changed setting concerns. The run is not written to: results are under
    RUN/replays/LABEL, and the same command goes on where it was stopped.
    """
    from pipeline.replays.command import run_replay

    run_replay(
        run,
        root,
        set_ or [],
        iterations=iterations,
        split=split,
        label=label,
        until=until,
        again=again,
        as_json=as_json,
    )


@run_app.command("ablate")
def run_ablate(
    run: RunName,
    variants: Annotated[
        str,
        typer.Option("--variants", help="A TOML file with a [variants.<name>] table of settings for each."),
    ],
    iterations: Annotated[
        str | None,
        typer.Option("--iterations", help="A:B is from A to before B, as in Python. Default: all."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The ablation's name. Default: that of the file.")
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=0, help="How many disputed episodes to list.")
    ] = 10,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Compare several settings of rewards and credit over the same stored turns.

    Each variant is a replay under RUN/replays/LABEL/VARIANT, and a run in MLflow.
    """
    from pipeline.replays.command import run_ablate

    run_ablate(run, root, variants, iterations=iterations, label=label, shown=episodes, as_json=as_json)


@run_app.command("sweep")
def run_sweep(
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many iterations each run has at the end.")
    ],
    what: Annotated[
        Literal["sharing"] | None, typer.Argument(help="`sharing` sweeps the regimes; else give --grid.")
    ] = None,
    regimes: Annotated[
        str | None,
        typer.Option("--regimes", help="full,separate,adapters,groups, or groups:NAME=ROLE+ROLE:NAME=ROLE."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="Any setting: --grid ppo.learning_rate=1e-6,1e-5 (repeatable)."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="0,1,2: every point once with each. Default: run.seed.")
    ] = None,
    set_for: Annotated[
        list[str] | None,
        typer.Option("--set-for", help="One setting for one regime: adapters:ppo.learning_rate=1e-4."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The sweep's name under the root.")] = None,
    config: Config = "pipeline.toml",
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs, and stop.")] = False,
) -> None:
    """Train the same team under several sharing regimes or settings, each with the same tasks, seeds and
    episodes, one run after another, and compare them. The same command goes on where it was stopped."""
    from pipeline.sweep import sweep_command

    sweep_command(
        config,
        set_ or [],
        dry=dry_run,
        iterations=iterations,
        sharing=what == "sharing",
        regimes=regimes,
        grid=grid or [],
        set_for=set_for or [],
        seeds=seeds,
        name=name,
    )


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs and sweeps: names under the root, paths or URLs.")],
    out: Annotated[
        str | None, typer.Option("--out", help="Where plots and their numbers go. Default: under the root.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, help="Iterations behind the first and last returns. Default: 5."),
    ] = None,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Put runs side by side: what differs in their settings, what came out, what it cost, and plots."""
    from pipeline.compare import compare_command

    compare_command(runs, root, out=out, last=last, as_json=as_json)


@app.command()
def export(
    folder: Annotated[str, typer.Argument(help="The new folder to write.")],
    run: Annotated[str, typer.Option("--run", "-r", help="A path, a URL, a name under the root.")] = "latest",
    model: Annotated[str | None, typer.Option("--model", help="Default: the only one.")] = None,
    version: Annotated[
        str, typer.Option("--version", help="A number, `latest`, or `best` (of the evaluations).")
    ] = "latest",
    merge: Annotated[bool, typer.Option("--merge", help="Put an adapter into its base's weights.")] = False,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Write a trained model as a Hugging Face folder for transformers and vLLM; an adapter as PEFT does."""
    from pipeline import jobs

    jobs.export(run, root, folder, model=model, version=version, merge=merge, as_json=as_json)


@app.command()
def show(
    run: RunName = "latest",
    iteration: Annotated[int | None, typer.Option("--iteration", "-i", help="Default: the newest.")] = None,
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
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Show what a run did: its accounts, its updates, and episodes as readable conversations. With
    --where, the turns that a condition on their columns chooses; --json prints one turn a line."""
    from pipeline import jobs

    jobs.show(
        run,
        root,
        iteration=iteration,
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
    split: Annotated[
        str | None, typer.Option("--split", help="An evaluation on this split; --iteration N says which.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="The most it has (2,000); of more it has a spread."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The file; default: in the run's folder report/.")
    ] = None,
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
    as_json: Json = False,
) -> None:
    """Write one HTML page that shows what happened: the graph, the accounts, every episode as a
    conversation, tokens coloured by logprob gap or advantage. It needs no network and no server."""
    from pipeline.report.command import report

    report(run, root, iteration=iteration, split=split, episodes=episodes, out=out, as_json=as_json)


@app.command()
def runs(
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs", as_json: Json = False
) -> None:
    """List the runs under a root."""
    from pipeline import jobs

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
    root: Annotated[str, typer.Option("--root", help="Where runs lie.")] = "runs",
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
    from pipeline.ui import show_ui

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
    from pipeline.serve_retriever import serve

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
) -> None:
    """Grade answers or programs: JSON lines in, the same lines with verdicts out, a summary on stderr."""
    from pipeline.grade import grade

    grade(kind, file, mode, sandbox)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed run, 2 wrong usage, 130 or 143 stopped."""
    sys.exit(_guarded())


def _guarded() -> int:
    from pipeline.signals import Stopped, stop_behind

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
    from pipeline.render import visible  # a message may quote what a model or a file says

    sys.stderr.write(f"error: {visible(str(message))}\n")
    return code
